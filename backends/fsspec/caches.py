"""fsspec's caches of files on local disk: they never hold half a file, and a full one does not fail a load.

Guarantees: a file gets its name in a ``simplecache`` only when it is complete and on disk, so a process that dies
leaves nothing that a later one would take for the file. Where the cache has no room, the file is read from its storage
instead, with one warning per cache; but not where the cache would have decompressed it.
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
import weakref
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem, SimpleCacheFileSystem, WholeFileCacheFileSystem

from streamer.backends.posix.atomic_write import draft_of
from streamer.backends.private_names.fsspec import (
    cached_file_name,
    forget_cached_file,
    is_cached,
    make_cache_folder,
    note_new_file,
    path_of,
)
from streamer.core.no_room import NO_ROOM
from streamer.core.quoting import printable

__all__ = ["local_size_bytes", "open_for_reading"]

_warned: weakref.WeakSet[AbstractFileSystem] = weakref.WeakSet()


def open_for_reading(fs: AbstractFileSystem, path: str) -> Any:
    """Open a file, through the cache where `fs` is one.

    Raises:
        OSError: and whatever else `fs` raises.
    """
    if not isinstance(fs, CachingFileSystem):
        return fs.open(path, "rb")
    path = path_of(fs, path)
    try:
        if isinstance(fs, SimpleCacheFileSystem) and not fs.compression:
            _fill(fs, path)
        elif not isinstance(fs, WholeFileCacheFileSystem):
            _check_room(fs, path)
        return fs.open(path, "rb")
    except OSError as error:
        if error.errno not in NO_ROOM or fs.compression:
            raise
        _forget(fs, path)
        _warn_once(fs, error)
        return fs.fs.open(path, "rb")


def local_size_bytes(fs: AbstractFileSystem, path: str) -> int | None:
    """Download a file into the cache and return its size; None where `fs` is no cache of whole files."""
    if not isinstance(fs, WholeFileCacheFileSystem):
        return None
    with open_for_reading(fs, path) as file:
        try:
            return os.fstat(file.fileno()).st_size
        except (AttributeError, OSError):  # not a file of the cache, which is full
            return None


def _fill(fs: Any, path: str) -> None:
    """Download to another name, and rename when the file is complete; ``simplecache`` itself writes to its name."""
    if is_cached(fs, path):
        return
    make_cache_folder(fs)
    with draft_of(cached_file_name(fs, path)) as draft:
        fs.fs.get_file(path, draft)
    note_new_file(fs)


def _check_room(fs: Any, path: str) -> None:
    """Refuse a cache of blocks that might fill up: it writes through a mapping, where a full disk raises a signal."""
    make_cache_folder(fs)
    size_bytes = fs.fs.info(path).get("size") or 0
    if shutil.disk_usage(fs.storage[-1]).free < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _forget(fs: Any, path: str) -> None:
    """Remove the remains of a failed download, which a later process would take for the file."""
    forget_cached_file(fs, path)
    with suppress(OSError):
        os.unlink(cached_file_name(fs, path))


def _warn_once(fs: Any, error: OSError) -> None:
    if fs in _warned:
        return
    _warned.add(fs)
    place = printable(str(fs.storage[-1]))
    warnings.warn(
        f"The cache {place} has no room ({errno.errorcode[error.errno or 0]}): files are read without it",
        RuntimeWarning,
        stacklevel=2,
    )
