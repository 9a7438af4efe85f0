"""Servers that do not answer: which failures are transient, how long requests wait, what the user sees meanwhile."""
