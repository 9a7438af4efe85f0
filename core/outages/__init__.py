"""Servers that do not answer: which failures are transient, how long to wait, and what the user is shown meanwhile."""
