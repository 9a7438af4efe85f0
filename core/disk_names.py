"""Converts names of files between text and the strings that Python's file functions use, in both directions.

Text of a document, a URL or a listing means UTF-8 bytes on a disk, whatever the locale is. Python decodes names on a
disk by the locale; under UTF-8 both are the same.
"""

from __future__ import annotations

import os
import sys

__all__ = ["disk_name", "text_of"]

_IS_UTF8 = sys.getfilesystemencoding() == "utf-8"


def disk_name(text: str) -> str:
    """Return the path for Python's file functions.

    Example:
        >>> disk_name("model.safetensors")
        'model.safetensors'
    """
    return text if _IS_UTF8 or text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def text_of(name: str) -> str:
    """Return a path of Python's file functions as text.

    If the locale cannot encode a path, it cannot come from the disk, so it is already text.
    """
    if _IS_UTF8 or name.isascii():
        return name
    try:
        return os.fsencode(name).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name
