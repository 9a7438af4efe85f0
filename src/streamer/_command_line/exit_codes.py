"""Exit codes of the commands, by which an init container or a script can decide.

If ``sysexits.h`` has a fitting code, it is used.
"""

from __future__ import annotations

import errno

from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    ChecksumError,
    FormatError,
    MissingShardError,
    ObjectNotFoundError,
    OutOfMemoryError,
    RangeResponseError,
    RedirectError,
    StorageError,
    StreamerError,
    TlsError,
    TruncatedError,
    UsageError,
)
from streamer.core.no_room import NO_ROOM_NAMES

__all__ = ["DISK", "exit_code_of"]

USAGE = 2  # as in click
WRONG_DATA = 65
NOT_FOUND = 66
UNAVAILABLE = 69
INTERNAL = 70
DISK = 73
TRY_AGAIN = 75
PROTOCOL = 76
DENIED = 77

# The first matching class counts: a subclass stands before its base class.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UsageError, USAGE),
    (FormatError, WRONG_DATA),
    (ChecksumError, WRONG_DATA),
    (TruncatedError, WRONG_DATA),
    (MissingShardError, WRONG_DATA),
    (ObjectNotFoundError, NOT_FOUND),
    (AccessDeniedError, DENIED),
    (ChangedError, TRY_AGAIN),
    (OutOfMemoryError, TRY_AGAIN),
    (TlsError, PROTOCOL),
    (RedirectError, PROTOCOL),
    (RangeResponseError, PROTOCOL),
    (StorageError, UNAVAILABLE),
    (StreamerError, INTERNAL),
    (OSError, DISK),
)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # this machine lacks a resource at this moment


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Example:
        >>> [exit_code_of(error) for error in (ObjectNotFoundError("gone"), OSError(28, "No space left on device"))]
        [66, 73]
    """
    if isinstance(error, OSError) and error.errno in _SCARCE:
        return TRY_AGAIN
    if isinstance(error, StorageError) and error.code in NO_ROOM_NAMES:  # a manifest could not be written
        return DISK
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)
