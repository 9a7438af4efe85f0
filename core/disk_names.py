"""Names of files as text, and as Python writes them for this machine's disk: one seam between the two, there and back.

Text of a document, a URL or a listing means UTF-8 bytes on a disk, whatever the locale is. Python decodes the names of
a disk as the locale says, which under UTF-8 is the same.
"""

from __future__ import annotations

import os
import sys

__all__ = ["disk_name", "text_of"]

_IS_UTF8 = sys.getfilesystemencoding() == "utf-8"


def disk_name(text: str) -> str:
    """Return a path as Python's functions of files take it.

    Args:
        text: The path as text; bytes that are no UTF-8 are lone surrogates, as of `os.fsdecode` under UTF-8.

    Example:
        >>> disk_name("model.safetensors")
        'model.safetensors'
    """
    return text if _IS_UTF8 or text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def text_of(name: str) -> str:
    """Return a path of Python's functions of files as text.

    A path that the locale cannot write was no name of a disk, and is text already.
    """
    if _IS_UTF8 or name.isascii():
        return name
    try:
        return os.fsencode(name).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name
