"""Calls as pure state machines: the ones this node makes, the ones it serves, and the credit their streams run on."""
