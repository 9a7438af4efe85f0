"""How a file of an fsspec file system is read from several threads at once, and every length checked.

Guarantees: a read fills its whole buffer or raises, and keeps no reference to it. Which file systems may be called from
several threads at once is an allow-list: those with an event loop of their own, and memory. All others (archives share
one file object, connections of sftp or libhdfs one socket, a cache one download) are read by one thread, through one
open file, under a lock shared by all files of that file system.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from streamer.backends.fsspec.caches import open_for_reading
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.info import Identity
from streamer.backends.private_names.fsspec import vars_of
from streamer.core.errors import RangeResponseError, StreamerError, TruncatedError
from streamer.core.store.sources import ObjectInfo, PythonSource

__all__ = ["source_of"]

_locks: weakref.WeakKeyDictionary[AbstractFileSystem, threading.Lock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def source_of(
    fs: AbstractFileSystem, path: str, info: ObjectInfo, *, hides_causes: bool, holder: object = None
) -> PythonSource:
    """Return the reader of one file that suits its file system.

    Args:
        fs: The file system.
        path: Its own path of the file.
        info: The file as messages name it.
        hides_causes: The user's URL holds a secret, which exceptions of `fs` may repeat.
        holder: Kept as long as the reader; see `Identity`.
    """
    identity = Identity(fs, path, info, hides_causes, holder)
    if _takes_ranges_from_threads(fs):
        ranges = _RangeReader(fs, path, info, hides_causes, identity)
        return PythonSource(ranges.read_into, confirm=identity.confirm)
    file = _FileReader(fs, path, info, hides_causes, identity)
    return PythonSource(file.read_into, max_threads=1, confirm=file.confirm)


def _takes_ranges_from_threads(fs: AbstractFileSystem) -> bool:
    """`cat_file` of these asks for the range alone: as one request, or as one slice of memory.

    `open` would not do for memory: it hands out one file object, and so one position, to everybody.
    """
    if isinstance(fs, MemoryFileSystem):
        return True
    if not type(fs).async_impl:
        return False
    # A wrapper (a sub-folder, an asynchronous coat) is as safe as what it wraps.
    wrapped = vars_of(fs).get("fs")
    return wrapped is None or _takes_ranges_from_threads(wrapped)


class _RangeReader:
    """Reads by ranges; any number of threads at a time."""

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, identity: Identity
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._identity = identity

    def read_into(self, buffer: memoryview, offset: int) -> int:
        wanted = buffer.nbytes
        self._identity.note()
        try:
            data = self._fs.cat_file(self._path, start=offset, end=offset + wanted) if wanted else b""
        except Exception as error:
            asked = (offset, offset + wanted)
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes, byte_range=asked)
        _check_length(len(data), wanted, offset, self._info)
        buffer.cast("B")[:] = data
        return wanted


class _FileReader:
    """Reads through one open file, one thread at a time; blocks come in file order, so archives are inflated once."""

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, identity: Identity
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._identity = identity
        self._lock = _lock_of(fs)
        self._file: Any = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        wanted = buffer.nbytes
        try:
            with self._lock:
                self._identity.note()
                got = _fill(self._opened(), buffer.cast("B"), offset)
        except StreamerError:
            raise
        except Exception as error:
            asked = (offset, offset + wanted)
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes, byte_range=asked)
        _check_length(got, wanted, offset, self._info)
        return got

    def confirm(self) -> None:
        with self._lock:
            self._identity.confirm()

    def _opened(self) -> Any:
        if self._file is None:
            self._file = open_for_reading(self._fs, self._path)
            weakref.finalize(self, self._file.close)
        return self._file


def _lock_of(fs: AbstractFileSystem) -> threading.Lock:
    """Return the one lock of this file system; fsspec shares an instance between equal requests for it."""
    with _locks_guard:
        return _locks.setdefault(fs, threading.Lock())


def _start_anew_in_child() -> None:
    _locks.clear()  # threads that the child does not have may hold them
    _locks_guard.release()


# `fork` waits for the guard, so that no child inherits it locked.
os.register_at_fork(
    before=_locks_guard.acquire, after_in_parent=_locks_guard.release, after_in_child=_start_anew_in_child
)


def _fill(file: Any, buffer: memoryview, offset: int) -> int:
    """Read until the buffer is full or the file ends, as `readinto` may stop at any inner border."""
    file.seek(offset)
    got = 0
    while got < len(buffer):
        step = file.readinto(buffer[got:])
        if not step:
            break
        got += step
    return got


def _check_length(got: int, wanted: int, offset: int, info: ObjectInfo) -> None:
    if got == wanted:
        return
    cls, what = (TruncatedError, "ends") if got < wanted else (RangeResponseError, "goes on")
    raise cls(
        f"The file {what} after {got} of the {wanted} bytes asked for",
        uri=info.uri,
        byte_range=(offset, offset + wanted),
        object_size=info.size_bytes,
    )
