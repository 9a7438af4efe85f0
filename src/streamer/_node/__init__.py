"""Processes of one node that load the same checkpoint read each byte of it once, and see each other's bytes."""
