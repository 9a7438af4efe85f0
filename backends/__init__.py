"""One folder per storage. A backend finds the place and the version of an object; it is imported on first use.

Register a new built-in storage in `backends/builtin_storages.py`.
"""
