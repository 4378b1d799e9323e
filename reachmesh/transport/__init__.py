"""The network: sockets and interfaces. The only room that uses ZeroMQ."""
