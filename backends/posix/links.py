"""Resolves links in the last part of a path; the kernel follows the links of all other parts."""

from __future__ import annotations

import os

__all__ = ["followed"]

MOST_LINKS = 40  # the kernel's limit


def followed(path: str) -> str:
    """Return the path of the file that a link, or a link to a link, leads to; return any other path unchanged.

    Folders of the path are not resolved, because the text of a link such as ``/proc/PID/root`` does not lead to its
    target. If the text of a link names another file than the one the kernel opens (``/proc/PID/fd/3``), it stays, too.

    Example:
        >>> followed("/etc/../etc/hostname")
        '/etc/../etc/hostname'
    """
    target = path
    for _ in range(MOST_LINKS):
        try:
            target = os.path.join(os.path.dirname(target), os.readlink(target))
        except OSError:  # no link, or nothing
            break
    is_same = not os.path.exists(path) or (os.path.exists(target) and os.path.samefile(path, target))
    return target if is_same else path
