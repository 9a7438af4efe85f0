"""The file that a path leads to, with the links of its last part followed; the kernel follows all others."""

from __future__ import annotations

import os

__all__ = ["followed"]

MOST_LINKS = 40  # as of the kernel


def followed(path: str) -> str:
    """Return the path of the file that a link, or a link to a link, leads to, and any other path as it is.

    Folders on the way stay as they are written: text cannot resolve a link such as ``/proc/PID/root``. A link whose
    text names another file than the kernel finds (``/proc/PID/fd/3``) stays, too.

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
