"""fsspec's caches of files on local disk: they never hold an incomplete file, and a full cache does not fail a load.

Guarantees, even if other processes use the cache: a copy gets its name in a cache only when it is complete, has the
size that the storage reports now, and is on disk. A copy that was made here is used only for the version, the server
and the login from which it was made; of a copy that another program has made, only the size is compared. If several
processes need a file, one downloads it, and the others wait. Size and version are those of the storage. If the cache
has no room, the file is read from its storage instead, with one warning per cache; if the cache would have decompressed
it, the load fails.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem, SimpleCacheFileSystem, WholeFileCacheFileSystem

from streamer.backends.fsspec.block_file import BlockFile, Blocks, sends_ranges
from streamer.backends.fsspec.info import fresh_info, origin_of, size_of, version_of
from streamer.backends.private_names.fsspec import (
    cached_copy,
    cached_file_name,
    make_cache_folder,
    note_new_file,
    path_of,
    record_whole_file,
    reload_record,
    remove_malformed_record,
    whole_file_name,
)
from streamer.core.errors import ChangedError, TruncatedError
from streamer.core.folders.drafts import LockedDraft, locked_folder
from streamer.core.folders.paths import NO_ROOM
from streamer.core.log import warn
from streamer.core.quoting import printable
from streamer.core.store.identities import digest_of, is_sealed, seal_of
from streamer.core.store.versions import seconds_of, settled_at

T = TypeVar("T")

ATTRIBUTE = "user.streamer.source"
COPIED_BYTES = 5 << 20  # copied at a time from a decompressed file

_warned: weakref.WeakSet[AbstractFileSystem] = weakref.WeakSet()


def open_for_reading(fs: AbstractFileSystem, path: str) -> Any:
    """Open a file, through the cache if `fs` is a cache."""
    if not isinstance(fs, CachingFileSystem):
        return fs.open(path, "rb")
    path = path_of(fs, path)
    try:
        if isinstance(fs, WholeFileCacheFileSystem):
            return _whole_file(fs, path)
        return _file_of_blocks(fs, path)
    except OSError as error:
        if error.errno not in NO_ROOM or fs.compression:
            raise
        _warn_once(fs, error)
        return fs.fs.open(path, "rb")


def local_size_bytes(fs: AbstractFileSystem, path: str) -> int | None:
    """Download a file into the cache and return its size; None if `fs` does not keep whole files with a size."""
    if not isinstance(fs, CachingFileSystem) or (fs.compression and not isinstance(fs, WholeFileCacheFileSystem)):
        return None
    with open_for_reading(fs, path) as file:
        try:
            return os.fstat(file.fileno()).st_size
        except (AttributeError, OSError):  # the cache is full, so this is not a file in the cache
            return None


def is_decompressing(fs: AbstractFileSystem) -> bool:
    """Say whether the copies in a cache have another size than the files of its storage."""
    return isinstance(fs, CachingFileSystem) and bool(fs.compression)


def with_whole_records(make: Callable[[], T], options: Mapping[str, Any]) -> T:
    """Make a file system. Remove a truncated record of a cache's files, so that these count as missing."""
    try:
        return make()
    except (AttributeError, KeyError, TypeError, ValueError):
        if not [folder for folder in _cache_folders(options) if remove_malformed_record(folder)]:
            raise
    return make()


def _cache_folders(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if name == "cache_storage":
            yield from [value] if isinstance(value, str) else value
        elif isinstance(value, Mapping):
            yield from _cache_folders(value)


def _whole_file(fs: Any, path: str) -> Any:
    """Open the copy of a file; make the copy if there is none."""
    make_cache_folder(fs)
    info = fresh_info(fs, path)
    if (file := _opened_copy(fs, path, info)) is not None:
        return file
    target = cached_file_name(fs, path)

    def opened() -> Any:
        reload_record(fs)
        return _opened_copy(fs, path, info)

    return _downloaded(fs, path, target, opened)


def _downloaded(fs: Any, path: str, target: str, opened: Callable[[], Any]) -> Any:
    """Open the copy if another process has made it meanwhile; otherwise download the file to `target`."""
    draft = LockedDraft.take(target)
    assert draft is not None
    try:
        if (file := opened()) is not None:
            draft.discard()
            return file
        info, is_settled = _settled_info(fs, path)
        _download(fs, path, draft.name, info)
        file = open(draft.name, "rb")  # noqa: SIM115 (the caller closes it)
        _note(fs, path, draft.name, target, info if is_settled else None)
        draft.finish()
    except BaseException:
        draft.discard()
        raise
    note_new_file(fs)
    return file


def _settled_info(fs: Any, path: str) -> tuple[Mapping[str, Any], bool]:
    """Describe a file; say whether no other bytes can get its version. A young version is looked up again."""
    info = fresh_info(fs, path)
    due = settled_at(version_of(info), changed_at_s=seconds_of(info.get("Last-Modified")))
    if due in (0.0, math.inf):
        return info, due == 0
    time.sleep(max(0.0, due - time.monotonic()))
    again = fresh_info(fs, path)
    return again, version_of(again) == version_of(info)


def _note(fs: Any, path: str, draft: str, target: str, info: Mapping[str, Any] | None) -> None:
    """Write down what a copy is of, before it gets its name: a process that waits for the draft reads this next."""
    note = seal_of("" if info is None else _identity(fs, path, info))
    with suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.setxattr(draft, ATTRIBUTE, note.encode())
    except (AttributeError, OSError):  # this system, or the file system of the folder, keeps no attributes
        Path(_name_of_note(target)).write_text(note)
    else:
        with suppress(FileNotFoundError):
            os.unlink(_name_of_note(target))
    if not isinstance(fs, SimpleCacheFileSystem):
        _record(fs, path, target)


def _identity(fs: Any, path: str, info: Mapping[str, Any]) -> str:
    """Return what decides the bytes of a copy: the file, its version, and the options of its storage."""
    origin = origin_of(fs)
    # Clients and other objects of Python differ in each process.
    options = {name: digest_of(value) or type(value).__qualname__ for name, value in origin.storage_options.items()}
    version = [version_of(info), info.get("Last-Modified")]  # beside a weak ETag, the time counts
    return digest_of(path, version, fs.compression, type(origin).__qualname__, options)


def _name_of_note(copy: str) -> str:
    folder, name = os.path.split(copy)
    return os.path.join(folder, f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:40]}.source")


def _is_of(fs: Any, path: str, copy: str, info: Mapping[str, Any]) -> bool:
    """Say whether a copy was made of this file; of a copy that another program has made, nothing more is known."""
    try:
        note = os.getxattr(copy, ATTRIBUTE).decode(errors="replace")
    except (AttributeError, OSError):
        try:
            note = Path(_name_of_note(copy)).read_text(errors="replace")
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return is_sealed(_identity(fs, path, info), note)


def _record(fs: Any, path: str, copy: str) -> None:
    """Write the copy of a file into the cache's record, so that fsspec itself finds it."""
    try:
        with locked_folder(fs.storage[-1]):  # so that records of other processes are not overwritten
            reload_record(fs)
            record_whole_file(fs, path, os.path.basename(copy))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _warn_once(fs, error)


def _opened_copy(fs: Any, path: str, info: Mapping[str, Any]) -> Any:
    """Open the copy in a cache; None if there is none, or if it is of another version, server or login."""
    size_bytes = None if fs.compression else size_of(info)
    name = cached_copy(fs, path)
    if name is None or not _is_of(fs, path, name, info):
        return None
    try:
        file = open(name, "rb")  # noqa: SIM115 (the caller closes it)
    except FileNotFoundError:  # removed meanwhile
        return None
    if size_bytes not in (None, os.fstat(file.fileno()).st_size):
        file.close()
        return None
    return file


def _download(fs: Any, path: str, name: str, before: Mapping[str, Any]) -> None:
    """Download the described version of a file."""
    if fs.compression or isinstance(fs.fs, CachingFileSystem):
        source = fs.fs.open(path, "rb", compression=fs.compression) if fs.compression else open_for_reading(fs.fs, path)
        with source, open(name, "wb") as target:
            shutil.copyfileobj(source, target, COPIED_BYTES)
    else:
        fs.fs.get_file(path, name)
    after, got = fresh_info(fs, path), os.stat(name).st_size
    if version_of(before) != version_of(after):
        raise ChangedError("The file was replaced while it was brought into the cache", hint="Load again")
    if not fs.compression and size_of(after) not in (None, got):
        raise TruncatedError(
            f"The file ended after {got} of its {size_of(after)} bytes",
            object_size=size_of(after),
            hint="Load again; if it ends there again, the copy on the server is damaged",
        )


def _file_of_blocks(fs: Any, path: str) -> Any:
    """Open a file whose blocks are downloaded when they are read; the cache keeps the copy once it has all blocks.

    The blocks that fsspec itself keeps are not used: if two processes fill the same file, one may empty it. If the
    storage sends only whole files, or reports no size, the whole file is downloaded as for the other caches.
    """
    make_cache_folder(fs)
    info = fresh_info(fs, path)
    size_bytes = size_of(info)
    if fs.compression:
        return fs.fs.open(path, "rb", compression=fs.compression)
    name = whole_file_name(fs, path)

    def opened() -> Any:
        return _opened_whole(fs, name, size_bytes) if _is_of(fs, path, name, info) else None

    if (file := opened()) is not None:
        if cached_copy(fs, path) is None:  # the record was broken; a cache that is only read goes without one
            with suppress(OSError):
                _record(fs, path, name)
        return file
    if size_bytes is None or not sends_ranges(fs.fs, path, size_bytes):
        return _downloaded(fs, path, name, opened)
    info, is_settled = _settled_info(fs, path)
    if size_of(info) != size_bytes:
        raise ChangedError("The file was replaced while it was brought into the cache", hint="Load again")

    def is_unchanged() -> bool:
        return version_of(fresh_info(fs, path)) == version_of(info)

    draft = LockedDraft.take(name, waits=False)
    blocks = Blocks(size_bytes, lambda begin, end: fs.fs.cat_file(path, start=begin, end=end), is_unchanged)
    return BlockFile(
        blocks,
        draft,
        on_kept=lambda: _note(fs, path, draft.name if draft else name, name, info if is_settled else None),
        on_no_room=lambda error: _warn_once(fs, error),
    )


def _opened_whole(fs: Any, name: str, size_bytes: int | None) -> Any:
    """Open the complete copy of a file in a cache of blocks; None if there is none of this size, or it is too old."""
    try:
        file = open(name, "rb")  # noqa: SIM115 (the caller closes it)
    except FileNotFoundError:
        return None
    status = os.fstat(file.fileno())
    if size_bytes in (None, status.st_size) and not (fs.expiry and time.time() - status.st_mtime > fs.expiry):
        return file
    file.close()
    return None


def _warn_once(fs: Any, error: OSError) -> None:
    if fs in _warned:
        return
    _warned.add(fs)
    place = printable(str(fs.storage[-1]))
    warn(
        f"The cache {place} has no room ({errno.errorcode[error.errno or 0]}): files are read without it",
        RuntimeWarning,
    )
