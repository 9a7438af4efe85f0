"""Shares one read of a checkpoint among the processes of a node: each byte is read once, and all of them use it."""
