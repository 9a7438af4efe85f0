"""Keeps secrets out of messages, logs and tracebacks."""
