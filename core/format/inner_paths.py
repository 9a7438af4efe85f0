"""Checks paths in the files of a checkpoint: each must stay inside the checkpoint's own folder, in every storage.

Refuses absolute paths, ``..``, URLs, and all names that some storage might read as one of these.
"""

from __future__ import annotations

import re

__all__ = ["why_not_inside"]


def why_not_inside(name: str) -> str | None:
    """Say why a name is not a relative path inside a folder; None if it is one.

    Example:
        >>> why_not_inside("a/b"), why_not_inside("../b")
        (None, 'has an empty segment, `.` or `..`')
    """
    if not name:
        return "is empty"
    if not name.isprintable():
        return "holds a control character"
    if "\\" in name:
        return "holds a backslash, which some systems read as a slash"
    if ":" in name:
        return "holds a colon, as URLs, chained URLs and drives do"
    if re.search(r"%[0-9A-Fa-f]{2}", name):
        return "holds a percent escape, which some storages decode"
    if name.startswith("/"):
        return "is an absolute path"
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        return "has an empty segment, `.` or `..`"
    return None
