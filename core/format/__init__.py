"""The formats of files: pure functions from bytes to values."""
