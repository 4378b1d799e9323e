"""Reachmesh beside its peers, on one machine, in one run; see `__main__` for how a run goes and `works` for what is measured."""
