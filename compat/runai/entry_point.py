"""The entry points that the shared library with Run:ai's C interface (``native/runai``) calls.

Arguments are numbers and addresses. The caller is C, so each function returns a `Code`, and raises only
KeyboardInterrupt. Errors are logged.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from functools import partial, wraps

from streamer.compat.runai.reader import RequestReader
from streamer.compat.runai.submissions import Code, code_of, listed_files, ranges_at, texts_at
from streamer.compat.runai.variables import storage_options_for
from streamer.core.errors import StreamerError
from streamer.core.log import OwnLogger

__all__ = ["end", "list_files", "request", "set_credentials", "start"]

# These functions only lock a queue briefly and do not use Python, so the GIL may stay held.
_ANSWER = ctypes.PYFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int)
_ANSWER_REST = ctypes.PYFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)
_LISTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)

_log = OwnLogger()
_readers: dict[int, RequestReader] = {}  # number of a streamer to its reader; a forked child has other numbers


def _coded(function: Callable[..., Code]) -> Callable[..., int]:
    @wraps(function)
    def coded(*arguments: int) -> int:
        try:
            return int(function(*arguments))
        except KeyboardInterrupt:
            raise  # the library expects this exception, and raises it again when Python continues
        except StreamerError as error:
            _log.error("%s", error)
            return code_of(error)
        except BaseException:
            _log.exception("a call of Run:ai's interface failed")
            return Code.UNKNOWN

    return coded


@_coded
def start(streamer: int, answer: int, answer_rest: int) -> Code:
    """Start a streamer; the two addresses are C functions that take its responses."""
    _readers[streamer] = RequestReader(partial(_ANSWER(answer), streamer), partial(_ANSWER_REST(answer_rest), streamer))
    return Code.SUCCESS


@_coded
def end(streamer: int) -> Code:
    """End a streamer; afterwards it writes to no memory."""
    reader = _readers.pop(streamer, None)
    if reader is None:
        return Code.FINISHED
    reader.end()
    return Code.SUCCESS


@atexit.register
def _end_all() -> None:
    """End all streamers: a thread that reads while the interpreter shuts down would crash the process."""
    for streamer in list(_readers):
        end(streamer)


@_coded
def set_credentials(streamer: int, keys: int, values: int, count: int) -> Code:
    """Set the credentials of a streamer; an empty set changes nothing."""
    reader = _readers.get(streamer)
    if reader is None:
        return Code.FINISHED
    credentials = dict(zip(texts_at(keys, count), texts_at(values, count), strict=True))
    return reader.set_credentials(credentials) if credentials else Code.SUCCESS


@_coded
def request(streamer: int, submission: int, *tables: int) -> Code:
    """Queue a request; the tables are those of `ranges_at`."""
    reader = _readers.get(streamer)
    if reader is None:
        return Code.FINISHED
    ranges = ranges_at(submission, *tables)
    return reader.request(submission, ranges) if ranges else Code.SUCCESS


@_coded
def list_files(  # noqa: PLR0917  the arguments of C
    streamer: int,
    prefix: int,
    is_recursive: int,
    allowed: int,
    allowed_count: int,
    ignored: int,
    ignored_count: int,
    listed: int,
    caller_data: int,
) -> Code:
    """List a folder; pass each file to the C function `listed`."""
    reader = _readers.get(streamer)
    if reader is None:
        return Code.FINISHED
    folder = ctypes.string_at(prefix).decode("utf-8", "surrogateescape")
    found = listed_files(
        folder,
        storage_options_for(folder, reader.credentials),
        is_recursive=bool(is_recursive),
        allowed=texts_at(allowed, allowed_count),
        ignored=texts_at(ignored, ignored_count),
    )
    report = _LISTED(listed)
    for path, size_bytes in found:
        report(path.encode("utf-8", "surrogateescape"), size_bytes, caller_data or None)
    return Code.SUCCESS
