"""Wraps a plug-in's store for the engine: answers are checked, exceptions are translated, calls are timed.

Guarantees: `read_into`, `confirm` and `refresh` only raise errors of this package, which name the plug-in. The result
of `refresh` is checked like the first source.

Guarantees: a method fulfils the contract of `streamer.core.store.sources.Store`, or raises an error of this package
that names the plug-in. Stores of this package are not wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.sources import FileSource, HttpSource, NfsSource, ObjectInfo, PythonSource, Source
from streamer.core.store.uploads import Upload
from streamer.plugins.guard.answers import (
    checked_http,
    digest_in,
    info_in,
    line_in,
    listing_in,
    names_in,
    number_in,
    path_in,
    text_in,
)
from streamer.plugins.guard.calls import BrokenContractError, Calls, kind_of

__all__ = ["GuardedStore", "GuardedUpload", "guarded", "guarded_source", "unguarded", "upload_in"]

METHODS_OF_UPLOADS = ("send", "finish", "abort")

MOST_THREADS = 256  # the limit of `Options`
LONGEST_TIMEOUT_S = 1e7  # four months

OPTIONAL = ("begin_upload", "digest", "folders", "remove", "write")
METHODS = ("info", "find", "source", "close")
CLOSE_TIMEOUT_S = 10.0  # a load that has all its tensors should not wait longer


class GuardedUpload:
    """See `streamer.core.store.uploads.Upload`."""

    def __init__(self, upload: Upload, calls: Calls, uri: str | None) -> None:
        self._upload, self._calls, self.uri = upload, calls, uri
        self.parallel_parts = int(upload.parallel_parts)
        self.needs_equal_parts = bool(getattr(upload, "needs_equal_parts", True))

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part; raises as `Upload.send`."""
        readable = part.toreadonly()  # the memory of the user's tensors
        self._calls.ask("send", lambda: self._upload.send(offset_bytes, readable), self.uri)

    def finish(self) -> None:
        """Make the object visible; raises as `Upload.finish`."""
        self._calls.ask("finish", self._upload.finish, self.uri)

    def abort(self) -> None:
        """Remove the sent parts; raises as `Upload.abort`."""
        self._calls.ask("abort", self._upload.abort, self.uri)


def upload_in(answer: Any) -> Upload:
    """Return an answer if it is an upload."""
    lacking = [name for name in METHODS_OF_UPLOADS if not callable(getattr(answer, name, None))]
    if not hasattr(answer, "parallel_parts"):
        lacking.append("parallel_parts")
    if lacking:
        raise BrokenContractError(f"returned {kind_of(answer)}, which lacks {', '.join(lacking)}")
    number_in(answer.parallel_parts, "parallel_parts", 1, sys.maxsize)
    upload: Upload = answer
    return upload


def guarded_source(source: Any, calls: Calls, uri: str, store: object) -> Source:
    """Return a checked source with wrapped functions."""
    if isinstance(source, HttpSource):
        checked = checked_http(source)
        return replace(checked, refresh=source.refresh and _refresh(source, calls, uri, store), holder=store)
    if isinstance(source, FileSource):
        return replace(_file(source), holder=store)
    if isinstance(source, NfsSource):
        return NfsSource(line_in(source.url, "url"), holder=store)
    if isinstance(source, PythonSource):
        return replace(_python(source, calls, uri), holder=store)
    raise BrokenContractError(f"returned {kind_of(source)}, not a source of streamer.plugins")


def _refresh(source: HttpSource, calls: Calls, uri: str, store: object) -> Any:
    def refreshed() -> Source:
        assert source.refresh is not None
        newer = source.refresh()
        if not isinstance(newer, HttpSource):
            raise BrokenContractError(f"returned {kind_of(newer)}, not an HttpSource")
        return guarded_source(newer, calls, uri, store)

    return partial(calls.ask, "refresh", refreshed, uri)


def _file(source: FileSource) -> FileSource:
    path = path_in(source.path, "path")
    if not path.startswith("/"):
        raise BrokenContractError("gave a path that is relative, so that it depends on the working directory")
    inside = path_in(source.inside, "inside", may_be_none=True)
    return FileSource(path, is_remote=bool(source.is_remote), inside=inside, needs_cache=bool(source.needs_cache))


def _python(source: PythonSource, calls: Calls, uri: str) -> PythonSource:
    for name in ("read_into", "confirm"):
        function = getattr(source, name)
        if not callable(function) and not (name == "confirm" and function is None):
            raise BrokenContractError(f"gave {kind_of(function)} as {name}, which must be a function")
    if source.max_threads is not None:
        number_in(source.max_threads, "max_threads", 1, MOST_THREADS)
    is_number = isinstance(source.timeout_s, (int, float)) and not isinstance(source.timeout_s, bool)
    if source.timeout_s is not None and not (is_number and 0 < source.timeout_s <= LONGEST_TIMEOUT_S):
        raise BrokenContractError("gave a timeout_s that is no positive number of seconds")

    def read_into(buffer: memoryview, offset: int) -> int:
        # The buffer is passed on as an argument, because a closure would keep a reference to it.
        byte_range = (offset, offset + buffer.nbytes)
        return calls.call("read_into", _read, source, buffer, offset, uri=uri, byte_range=byte_range)

    return PythonSource(
        read_into,
        max_threads=source.max_threads,
        confirm=source.confirm and partial(calls.call, "confirm", source.confirm, uri=uri),
        remark=text_in(source.remark, "remark", may_be_none=True),
        timeout_s=source.timeout_s or calls.limits.block_deadline_s,
        owner=calls.plugin.label,
    )


def _read(source: PythonSource, buffer: memoryview, offset: int) -> int:
    wanted_bytes = buffer.nbytes
    got = source.read_into(buffer, offset)
    return number_in(got, "its result, the count of bytes that it wrote", 0, wanted_bytes)


class GuardedStore:
    """A wrapped store. An attribute that is not in the contract is read from the plug-in's store.

    Attributes:
        root: The root of the plug-in's store, as it was when it was opened.
    """

    root: str

    def __init__(self, store: Any, calls: Calls) -> None:
        self._store, self._calls = store, calls
        self.root, server, optional = calls.ask("streamer_open_store", lambda: _parts_of(store))
        if server is not None:
            self.server: str = server
        # Set as attributes of the instance, because `isinstance` with a protocol checks which attributes exist.
        if "digest" in optional:
            self.digest: Callable[[ObjectInfo], ObjectDigest | NoDigest] = self._digest
        if "folders" in optional:
            self.folders: Callable[[str], list[str]] = self._folders
        if "write" in optional:
            self.write: Callable[[str, bytes], None] = self._write
        if "begin_upload" in optional:
            self.begin_upload: Callable[..., Upload] = self._begin_upload
        if "remove" in optional:
            self.remove: Callable[[str], None] = self._remove

    def info(self, path: str) -> ObjectInfo:
        """Describe one object; raises as `Store.info`."""
        return self._calls.ask("info", lambda: info_in(self._store.info(path), path), self._uri(path))

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the objects directly in a folder, sorted; raises as `Store.find`."""
        uri, limits = self._uri(prefix) or self._calls.uri, self._calls.limits
        return self._calls.ask("find", lambda: listing_in(self._store.find(prefix), prefix, limits, uri), uri)

    def source(self, info: ObjectInfo) -> Source:
        """Return the source of an object's bytes; raises as `Store.source`."""
        store, calls = self._store, self._calls
        return calls.ask("source", lambda: guarded_source(store.source(info), calls, info.uri, store), info.uri)

    def close(self) -> None:
        """Close the plug-in's store."""
        limit_s = min(CLOSE_TIMEOUT_S, self._calls.limits.block_deadline_s)
        self._calls.ask("close", self._store.close, limit_s=limit_s)

    def _digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        return self._calls.ask("digest", lambda: digest_in(self._store.digest(info), info), info.uri)

    def _folders(self, prefix: str) -> list[str]:
        uri = self._uri(prefix)
        return self._calls.ask("folders", lambda: names_in(self._store.folders(prefix), self._calls.limits, uri), uri)

    def _write(self, path: str, data: bytes) -> None:
        self._calls.ask("write", lambda: self._store.write(path, data), self._uri(path))

    def _begin_upload(self, path: str, *facts: Any) -> Upload:
        uri = self._uri(path)
        upload = self._calls.ask("begin_upload", lambda: upload_in(self._store.begin_upload(path, *facts)), uri)
        return GuardedUpload(upload, self._calls, uri)

    def _remove(self, path: str) -> None:
        self._calls.ask("remove", lambda: self._store.remove(path), self._uri(path))

    def _uri(self, path: str) -> str | None:
        """Return the URL of an object in the form of the user's URL; None if its path does not continue that URL."""
        shown, root = self._calls.uri, self.root.rstrip("/")
        if path.rstrip("/") == root or not path.startswith(f"{root}/") or not shown.endswith(root) or not root:
            return None
        return shown + path[len(root) :]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in (*OPTIONAL, "server"):
            raise AttributeError(name)
        return getattr(self._store, name)


def guarded(store: Any, calls: Calls) -> GuardedStore:
    """Wrap the return value of a plug-in's hook."""
    return GuardedStore(store, calls)


def unguarded(store: Any) -> Any:
    """Return the plug-in's own store, for a suite that tests it."""
    return store._store if isinstance(store, GuardedStore) else store


def _parts_of(store: Any) -> tuple[str, str | None, set[str]]:
    """Return the store's root, its server, and the names of the optional methods that it has."""
    lacking = [name for name in METHODS if not callable(getattr(store, name, None))]
    if not hasattr(store, "root"):
        lacking.append("root")
    if lacking:
        raise BrokenContractError(f"returned {kind_of(store)}, which lacks {', '.join(lacking)}")
    optional = {name for name in OPTIONAL if getattr(store, name, None) is not None}
    for name in optional:
        if not callable(getattr(store, name)):
            raise BrokenContractError(f"returned a store whose {name} is no method")
    server = text_in(getattr(store, "server", None), "server", may_be_none=True)
    return str(text_in(store.root, "root")), server or None, optional
