"""Loads of the ranks of a process group: each byte is read by one rank, and sent to the others that want it."""
