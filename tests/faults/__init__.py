"""A server that serves a folder correctly, except for the faults it is told to make; ``python -m faults --help``."""
