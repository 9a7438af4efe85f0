"""fsspec's caches of files on local disk: never half a file in them, and no load that ends because they are full.

Guarantees: a file enters ``simplecache`` under its name only when it is whole and on disk, so a process that dies
leaves nothing that a later one takes for it. Where the cache has no room, the file is read from where it comes from
instead, with one warning per cache. Refuses to do so where the cache would have decompressed it.
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
from streamer.core.quoting import printable

__all__ = ["local_size_bytes", "open_for_reading"]

# No space, no quota, larger than a file may be, and a cache somebody mounted for reading alone.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

_warned: weakref.WeakSet[AbstractFileSystem] = weakref.WeakSet()


def open_for_reading(fs: AbstractFileSystem, path: str) -> Any:
    """Open a file, by way of the cache that `fs` may be.

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
        if error.errno not in _NO_ROOM or fs.compression:
            raise
        _forget(fs, path)
        _warn_once(fs, error)
        return fs.fs.open(path, "rb")


def local_size_bytes(fs: AbstractFileSystem, path: str) -> int | None:
    """Download a file into the cache that `fs` is, and return its size; None where it is no cache of whole files."""
    if not isinstance(fs, WholeFileCacheFileSystem):
        return None
    with open_for_reading(fs, path) as file:
        try:
            return os.fstat(file.fileno()).st_size
        except (AttributeError, OSError):  # read from elsewhere, as the cache is full
            return None


def _fill(fs: Any, path: str) -> None:
    """Do what ``simplecache`` does to the name itself to another one, which becomes the name when the file is whole."""
    if is_cached(fs, path):
        return
    make_cache_folder(fs)
    with draft_of(cached_file_name(fs, path)) as draft:
        fs.fs.get_file(path, draft)
    note_new_file(fs)


def _check_room(fs: Any, path: str) -> None:
    """Refuse a cache of blocks that might fill up: it writes through a mapping, where a full disk is a signal."""
    make_cache_folder(fs)
    size_bytes = fs.fs.info(path).get("size") or 0
    if shutil.disk_usage(fs.storage[-1]).free < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _forget(fs: Any, path: str) -> None:
    """Remove what a failed download left, so that nobody takes it for the file."""
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
