"""Translates errors of the operating system about files into this package's errors."""

from __future__ import annotations

import errno

from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from streamer.core.no_room import NO_ROOM
from streamer.core.secrets.redact import redact

__all__ = ["storage_error"]


def storage_error(error: OSError, path: str) -> StorageError:
    """Return this package's error for an error of the operating system about the file or folder at `path`."""
    code = errno.errorcode.get(error.errno or 0)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ObjectNotFoundError(
            "No such file or folder", uri=redact(path), hint="Check the path, and that its disk is mounted", code=code
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "Check the permissions of it, and of the folders above it"
        return AccessDeniedError("The file system refuses access", uri=redact(path), hint=hint, code=code)
    if error.errno in NO_ROOM:
        hint = "Free some space, or write to another disk"
    else:
        hint = "Check the path and the disk; the kernel's log (dmesg) may tell more"
    return StorageError(f"The file system failed: {error.strerror}", uri=redact(path), hint=hint, code=code)
