"""One folder per storage. A backend finds the place and the version of an object; it is imported on first use.

Register a new built-in storage in ``pyproject.toml`` (entry points `streamer.backends`) and in
`backends/builtin_storages.py`.
"""
