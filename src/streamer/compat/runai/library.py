"""Where the shared library with Run:ai's C interface lies."""

from __future__ import annotations

from pathlib import Path

from streamer import _native

__all__ = ["library_path"]

NAME = "librunai_file_streamer.so"


def library_path() -> str:
    """Give the path of the library for ``STREAMER_LIBRARY``, with which Run:ai's own Python package loads it.

    Example:
        >>> library_path().endswith("/librunai_file_streamer.so")
        True
    """
    return str(Path(_native.__file__).with_name(NAME))
