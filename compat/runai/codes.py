"""The codes of Run:ai's C interface (``native/runai/codes.h``), and the code of each error."""

from __future__ import annotations

from enum import IntEnum

from streamer.core.errors import (
    LoadCancelledError,
    OutOfMemoryError,
    PluginError,
    RangeResponseError,
    StorageError,
    StreamerError,
    TruncatedError,
    UnknownSchemeError,
    UsageError,
)

__all__ = ["Code", "code_of"]


class Code(IntEnum):
    """The result of a call or a range."""

    SUCCESS = 0
    FINISHED = 1
    FILE_ACCESS = 2
    END_OF_FILE = 3
    INVALID_PARAMETER = 7
    UNKNOWN = 11
    NO_BACKEND = 12
    WRONG_ANSWER = 15
    OTHER_CREDENTIALS = 18
    OUT_OF_MEMORY = 26


_CODES: tuple[tuple[type[StreamerError], Code], ...] = (  # the first matching class counts
    (LoadCancelledError, Code.FINISHED),
    (TruncatedError, Code.END_OF_FILE),
    (RangeResponseError, Code.WRONG_ANSWER),
    (StorageError, Code.FILE_ACCESS),
    (OutOfMemoryError, Code.OUT_OF_MEMORY),
    (UnknownSchemeError, Code.NO_BACKEND),
    (PluginError, Code.NO_BACKEND),
    (UsageError, Code.INVALID_PARAMETER),
)


def code_of(error: BaseException) -> Code:
    """Return the code of an error.

    Example:
        >>> code_of(TruncatedError("the file is shorter than before"))
        <Code.END_OF_FILE: 3>
    """
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN)
