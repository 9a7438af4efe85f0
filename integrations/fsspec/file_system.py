"""A file system for fsspec that wraps another one: ``streamer::s3://bucket/key``.

The engine reads the bytes. The wrapped file system lists, with its own arguments (``s3={…}``), configuration and
environment. Guarantees: all reads of an open object give the same version, or raise `streamer.ChangedError`. Listings
are requested each time, never taken from a cache. Nothing is written, copied, moved or removed. Errors are those of
`streamer`; each is also the builtin exception that users of fsspec expect, and none shows a secret.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback, NoOpCallback
from fsspec.utils import isfilelike

from streamer.core.engine.byte_reads import read_bytes
from streamer.core.errors import FormatError, ObjectNotFoundError, OptionError, StreamerError
from streamer.core.options.arguments import check_file_system, check_options, check_storage_options
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.quoting import quoted
from streamer.integrations.fsspec.inner import Inner, ListedInside, refusal
from streamer.integrations.fsspec.remote_file import CachedFile, PinnedObject, RemoteFile
from streamer.integrations.fsspec.transfers import (
    bounds,
    check_names,
    download,
    download_small,
    is_small,
    opened_objects,
    read_ranges,
    write_to,
)

# Arguments that fsspec accepts for every file system.
_COMMON = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"})
_OPEN_ARGUMENTS = frozenset({"cache_options", "cache_type", "fill_cache", "size"})


class StreamerFileSystem(ListedInside):
    """Reads files that another file system lists.

    Args:
        fs: The file system to read from, in place of `target_protocol` and `target_options`.
        target_protocol: The protocol of the file system; protocols of `streamer` work, too (``nfs``, plug-ins).
        target_options: The arguments of the file system.
        fo: The path of the URL; fsspec passes it.
        options: How to read; see `streamer.Options`.
        named: Single options, by their names: ``memory_limit_bytes=…``.

    Raises:
        OptionError: an argument is unknown or out of its bounds, or names no file system.
        StreamerError: the wrapped file system cannot be created.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe_file("/example/letters", b"abc")
        >>> fs = fsspec.filesystem("streamer", target_protocol="memory")
        >>> fs.cat_file("/example/letters", start=1)
        b'bc'
    """

    protocol = "streamer"

    def __init__(
        self,
        fs: AbstractFileSystem | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fo: str = "",
        options: Options | None = None,
        **named: Any,
    ) -> None:
        check_file_system(fs)
        check_storage_options(target_options)
        check_options(options, Options)
        if named.pop("asynchronous", False):
            raise OptionError(
                "streamer:: is synchronous: it reads in threads of its own",
                hint="Wrap it: fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper",
            )
        super().__init__(**{name: named.pop(name) for name in _COMMON & named.keys()})
        self._settings = resolve(_with_single(options, named))
        self._list_with(Inner(target_protocol, target_options, fs, self._settings), fo)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {type(self.fs).__name__}>"

    def pinned(self, path: str, expected: tuple[str | None, int] | None = None) -> PinnedObject:
        """Look up an object; see `PinnedObject`."""
        return PinnedObject(self._inner.opened, self._path_of(path), self._settings, expected)

    def ukey(self, path: str) -> str:
        """Return a text that changes with the content, from one fresh request; raises as `info`."""
        pinned = self.pinned(path)
        version = pinned.version or str(self.info(path))
        return hashlib.sha256(f"{self._path_of(path)} {pinned.size_bytes} {version}".encode()).hexdigest()

    def checksum(self, path: str) -> int:
        """Return `ukey` as a number."""
        return int(self.ukey(path), 16)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **named: Any) -> bytes:
        """Read a file, or a slice of it.

        Raises:
            ChangedError: the file was replaced meanwhile.
            StorageError: or a subclass.
        """
        check_names("cat_file", named, frozenset())
        pinned = self.pinned(path)
        wanted = (0, *bounds(pinned.size_bytes, start, end))
        (content,), _ = read_bytes([pinned.source_object()], [wanted], pinned.fresh_settings())
        return content

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **named: Any,
    ) -> list[Any]:
        """Read slices of files in parallel; gaps of up to `max_gap` bytes are read and dropped.

        Raises:
            TypeError: `paths` is no list.
            ValueError: `starts` or `ends` has another length than `paths`.
            StorageError: or a subclass, unless `on_error` is ``"return"``, which returns errors in place of the bytes.
        """
        check_names("cat_ranges", named, {"batch_size"})
        if not isinstance(paths, list):
            raise TypeError(f"paths is a list, not {type(paths).__name__}")
        firsts, lasts = (
            list(each) if isinstance(each, (list, tuple)) else [each] * len(paths) for each in (starts, ends)
        )
        wanted = list(zip(map(self._path_of, paths), firsts, lasts, strict=True))
        results = read_ranges(opened_objects((path for path, _, _ in wanted), self.pinned), wanted, max_gap)
        failed = [each for each in results if isinstance(each, StreamerError)]
        if failed and on_error != "return":
            raise failed[0]
        return results

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **named: Any) -> Any:
        """Read whole files in parallel; return the bytes for one path, a dictionary for several paths or a pattern.

        Raises:
            StorageError: or a subclass, unless `on_error` is ``"return"`` or ``"omit"``.
        """
        paths = self.expand_path(path, **named)
        if recursive:  # the expansion of fsspec contains folders, too
            paths = list(dict.fromkeys(each for root in paths for each in self.find(root)))
        if not recursive and len(paths) == 1 and not isinstance(path, list) and paths[0] == self._path_of(path):
            return self.cat_file(paths[0])
        found = zip(paths, self.cat_ranges(paths, None, None), strict=True)
        contents = {each: content for each, content in found if on_error != "omit" or isinstance(content, bytes)}
        failed = [content for content in contents.values() if isinstance(content, StreamerError)]
        if failed and on_error == "raise":
            raise failed[0]
        return contents

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Callback | None = None, outfile: Any = None, **named: Any
    ) -> None:
        """Copy a file to a local file, which gets its name when it is complete; for a folder, create the folder.

        Raises:
            ChangedError: the file was replaced meanwhile.
            StorageError: or a subclass, from the storage.
            OSError: the local file cannot be written.
        """
        check_names("get_file", named, {"maxdepth", "recursive"})
        target = lpath if outfile is None and isfilelike(lpath) else outfile
        try:
            pinned = self.pinned(rpath)
        except ObjectNotFoundError:
            if target is not None or not self.isdir(rpath):
                raise
            os.makedirs(lpath, exist_ok=True)
            return
        if target is not None:
            write_to(pinned, target, callback or NoOpCallback())
        else:
            download(pinned, os.fspath(lpath), callback or NoOpCallback())

    def get(self, rpath: Any, lpath: Any, *how: Any, callback: Callback | None = None, **named: Any) -> None:
        """Copy files to local files with the names that fsspec gives them; small files share a session.

        Raises:
            FormatError: the storage lists a name that leads out of the local folder.
            ChangedError: a file was replaced meanwhile.
            StorageError: or a subclass, from the storage.
            OSError: a local file cannot be written.
        """
        progress, wanted = callback or NoOpCallback(), _CopyRecorder(self)
        AbstractFileSystem.get(wanted, rpath, lpath, *how, **named)
        if isinstance(lpath, (str, os.PathLike)):
            _check_inside(os.fspath(lpath), wanted.files)
        progress.set_size(len(wanted.files))
        found = opened_objects((path for path, _ in wanted.files), self.pinned)
        small = {}
        for path, target in wanted.files:
            each = found[path]
            if isinstance(each, PinnedObject) and is_small(each) and isinstance(target, str):
                small[target] = each
                continue
            with progress.branched(path, target) as child:
                self.get_file(path, target, callback=child)
            progress.relative_update()
        for _ in download_small(small):
            progress.relative_update()

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **named: Any
    ) -> RemoteFile | CachedFile:
        del autocommit
        if mode != "rb":
            raise refusal()
        check_names("open", named, _OPEN_ARGUMENTS)
        size = None if block_size == "default" else block_size
        pinned = self.pinned(path)
        if named.get("cache_type"):
            how = {"cache_type": named["cache_type"], "cache_options": named.get("cache_options")}
            return CachedFile(self, self._path_of(path), pinned, block_size=size, **how)
        return RemoteFile(self, self._path_of(path), pinned, size)


def _check_inside(folder: str, files: Sequence[tuple[str, Any]]) -> None:
    """Refuse targets outside of the folder: fsspec joins the names that a storage lists as they are."""
    root = os.path.abspath(folder)
    for path, target in files:
        if isinstance(target, str) and not f"{os.path.abspath(target)}/".startswith(f"{root.rstrip('/')}/"):
            hint = "Nothing was copied. Copy the other files by their names"
            raise FormatError(f"a listed name leads out of the folder: {quoted(path)}", hint=hint)


class _CopyRecorder:
    """Passed to fsspec in place of the file system; records the files that fsspec wants to copy, and their targets."""

    def __init__(self, fs: StreamerFileSystem) -> None:
        self._fs = fs
        self.files: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def get_file(self, rpath: str, lpath: Any, **_named: Any) -> None:
        self.files.append((rpath, lpath))


def _with_single(options: Options | None, single: Mapping[str, Any]) -> Options | None:
    known = {each.name for each in fields(Options)}
    if unknown := sorted(single.keys() - known):
        raise OptionError(
            f"streamer:: has no argument {unknown[0][:80]!r}",
            hint="Arguments of the file system inside go under its name: s3={…}, or into target_options",
        )
    if options is None:
        return Options(**single) if single else None
    return replace(options, **single)
