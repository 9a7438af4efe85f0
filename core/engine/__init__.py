"""The native engine as Python sees it: plans, sessions, readers of Python's."""
