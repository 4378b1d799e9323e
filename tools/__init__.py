"""What the project's own people run: the one-command runner and the benchmark."""
