"""Lets libraries that load models by themselves load them from any URL: a module or folder for each library.

A new one is listed in `tests/house.py`, and has a page in ``docs/integrations``. If the library finds plug-ins by entry
points, as vLLM, SGLang and fsspec do, register it in ``pyproject.toml``. Register `streamer.NAME`
in `_MODULES` of `src/streamer/__init__.py`.
"""
