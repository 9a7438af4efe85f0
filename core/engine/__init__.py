"""The Python side of the native engine: plans, sessions, and threads that read in Python."""
