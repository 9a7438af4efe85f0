"""Reads files of fsspec file systems, from several threads if the file system allows it, and checks every length.

Guarantees: a read fills its whole buffer or raises, and keeps no reference to the buffer. Only file systems with their
own event loop, and the memory file system, are called from several threads at once. All others are read by one thread,
through one open file, under a lock that all calls of the file system share, writes included. For example, the files of
an archive share one file object, calls of sftp or libhdfs share one socket, and readers of a cache share one download.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from streamer.backends.fsspec.caches import open_for_reading
from streamer.backends.fsspec.errors import raise_storage_error
from streamer.backends.fsspec.info import VersionCheck
from streamer.backends.private_names.fsspec import vars_of
from streamer.core.errors import ChangedError, RangeResponseError, StreamerError, TruncatedError
from streamer.core.store.sources import ObjectInfo, PythonSource


class _OneCall:
    """Context manager for one thread at a time. Files that nothing reads any more are closed between two calls.

    The garbage collector calls `close`, maybe in the middle of a call of the same thread. So `close` waits for no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unused: deque[Any] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._close_unused()

    def close(self, file: Any) -> None:
        """Close a file; if a call is under way, after that call."""
        self._unused.append(file)
        self._close_unused()

    def _close_unused(self) -> None:
        while self._unused and self._lock.acquire(blocking=False):
            try:
                with suppress(Exception):  # whatever this file met, the call of another file did not fail
                    self._unused.popleft().close()
            finally:
                self._lock.release()


_locks: weakref.WeakKeyDictionary[AbstractFileSystem, _OneCall] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def source_of(
    fs: AbstractFileSystem, path: str, info: ObjectInfo, *, hides_causes: bool, holder: object = None
) -> PythonSource:
    """Return the source of one file."""
    version = VersionCheck(fs, path, info, hides_causes, holder)
    if _takes_ranges_from_threads(fs):
        ranges = _RangeReader(fs, path, info, hides_causes, version)
        return PythonSource(ranges.read_into, confirm=version.confirm)
    file = _FileReader(fs, path, info, hides_causes, version)
    return PythonSource(file.read_into, max_threads=1, confirm=file.confirm)


def exclusive(fs: AbstractFileSystem) -> AbstractContextManager[object]:
    """Return a context manager in which no other thread calls a file system that takes one call at a time.

    Two threads that call paramiko's connection at once may each wait for ever for an answer that the other has dropped.
    """
    return nullcontext() if _takes_ranges_from_threads(fs) else _lock_of(fs)


def connection_of(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return the file system whose connection a chain of caches, folders and archives uses; often `fs` itself."""
    inner = fs
    while inner is not None and not _takes_ranges_from_threads(inner) and type(inner) is not LocalFileSystem:
        fs = inner
        is_chained = isinstance(fs, (CachingFileSystem, DirFileSystem))
        archive = vars_of(fs).get("of") if isinstance(fs, AbstractArchiveFileSystem) else None
        inner = vars_of(fs).get("fs") if is_chained else getattr(archive, "fs", None)
    return fs


def _takes_ranges_from_threads(fs: AbstractFileSystem) -> bool:
    """Say whether `cat_file` may be called from several threads, and reads only the range.

    `open` is unsuitable for the memory file system: all callers get the same file object, and share one position.
    """
    if isinstance(fs, MemoryFileSystem):
        return True
    if not type(fs).async_impl:
        return False
    # A wrapper (of a folder, of synchronous methods) is as safe as the file system that it wraps.
    wrapped = vars_of(fs).get("fs")
    return wrapped is None or _takes_ranges_from_threads(wrapped)


class _RangeReader:
    """Reads by ranges, in any number of threads at a time."""

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, version: VersionCheck
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._version = version

    def read_into(self, buffer: memoryview, offset: int) -> int:
        wanted = buffer.nbytes
        self._version.note()
        try:
            data = self._fs.cat_file(self._path, start=offset, end=offset + wanted) if wanted else b""
        except Exception as error:
            byte_range = (offset, offset + wanted)
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes, byte_range=byte_range)
        _check_length(len(data), wanted, offset, self._info)
        buffer.cast("B")[:] = data
        return wanted


class _FileReader:
    """Reads through one open file, one thread at a time, in file order, so that archives are decompressed once."""

    def __init__(
        self, fs: AbstractFileSystem, path: str, info: ObjectInfo, hides_causes: bool, version: VersionCheck
    ) -> None:
        self._fs, self._path, self._info, self._hides_causes = fs, path, info, hides_causes
        self._version = version
        self._exclusive = _lock_of(fs)
        self._file: Any = None
        self._state: tuple[int, int] | None = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        wanted = buffer.nbytes
        try:
            with self._exclusive:
                self._version.note()
                got = _fill(self._opened(), buffer.cast("B"), offset)
        except StreamerError as error:
            error.uri = error.uri or self._info.uri
            raise
        except Exception as error:
            byte_range = (offset, offset + wanted)
            raise_storage_error(error, self._info.uri, hides_cause=self._hides_causes, byte_range=byte_range)
        _check_length(got, wanted, offset, self._info)
        return got

    def confirm(self) -> None:
        with self._exclusive:
            self._version.confirm()
            if self._file is not None and _state_of(self._file) != self._state:
                raise ChangedError(
                    "Another program wrote to the copy of this file in the cache while it was read",
                    uri=self._info.uri,
                    hint="Load again, and do not share the folder of the cache with programs that use fsspec alone",
                )

    def _opened(self) -> Any:
        if self._file is None:
            self._file = open_for_reading(self._fs, self._path)
            self._state = _state_of(self._file)
            weakref.finalize(self, self._exclusive.close, self._file)
        return self._file


def _state_of(file: Any) -> tuple[int, int] | None:
    """Return the size and modification time of a cache's file on disk; None for any other file."""
    if type(file) is not io.BufferedReader:  # other files, such as members of archives, have no descriptor
        return None
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _lock_of(fs: AbstractFileSystem) -> _OneCall:
    """Return the lock of a file system, which fsspec shares between equal URLs and options."""
    with _locks_guard:
        return _locks.setdefault(connection_of(fs), _OneCall())


def _start_anew_in_child() -> None:
    _locks.clear()  # threads of the parent may hold these locks
    _locks_guard.release()


# `fork` waits for the guard, so that no child inherits it locked.
os.register_at_fork(
    before=_locks_guard.acquire, after_in_parent=_locks_guard.release, after_in_child=_start_anew_in_child
)


def _fill(file: Any, buffer: memoryview, offset: int) -> int:
    """Read until the buffer is full or the file ends: one `readinto` may return fewer bytes."""
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
