"""What a disk says: names of files as text, and the error numbers of a file that cannot grow."""

from __future__ import annotations

import errno
import os
import sys

__all__ = ["NO_ROOM", "NO_ROOM_NAMES", "disk_name", "text_of"]

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


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
NO_ROOM_NAMES = frozenset(errno.errorcode[number] for number in NO_ROOM)
