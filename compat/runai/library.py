"""The path of the shared library with Run:ai's C interface."""

from __future__ import annotations

from pathlib import Path

from streamer import _native

__all__ = ["library_path"]

NAME = "librunai_file_streamer.so"


def library_path() -> str:
    """Return the path of the library; Run:ai's own Python package loads it from the variable ``STREAMER_LIBRARY``.

    Example:
        >>> library_path().endswith("/librunai_file_streamer.so")
        True
    """
    return str(Path(_native.__file__).with_name(NAME))
