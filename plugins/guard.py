"""Wraps a plug-in's store: answers are checked, and each exception becomes an error that names the plug-in.

A plug-in is the user's own code, so a call of it lasts as long as the plug-in takes: it sets the time-outs of its
requests. Only a `read_into` has one here (`streamer.core.engine.python_readers`). Stores of this package are not
wrapped.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from streamer.core.discovery.entry_points import DISABLED
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    HttpStatusError,
    ObjectNotFoundError,
    OutOfMemoryError,
    PluginError,
    StorageError,
    StreamerError,
    TransferTimeoutError,
)
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES, is_transient
from streamer.core.secrets.redact import redact
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.sources import HttpSource, ObjectInfo, PythonSource, Source
from streamer.core.store.uploads import Upload
from streamer.plugins.answers import (
    BrokenContractError,
    digest_in,
    info_in,
    kind_of,
    listing_in,
    names_in,
    number_in,
    source_in,
)

SHOWN_CHARACTERS = 300  # of an exception's text: enough for a sentence, not for a page of HTML
HOOK = "streamer_open_store"
METHODS = ("info", "find", "source", "close")
OPTIONAL = ("begin_upload", "digest", "folders", "remove", "write")
UNGUARDED = ("identity", "peek", "resume_upload")

# Python's own classes with a clear meaning; docs/write-a-plugin.md lists them.
_MEANINGS: tuple[tuple[tuple[type[Exception], ...], type[StorageError], str], ...] = (
    ((FileNotFoundError, NotADirectoryError, IsADirectoryError), ObjectNotFoundError, "There is no such object"),
    ((PermissionError,), AccessDeniedError, "The storage refuses access"),
    ((TimeoutError,), TransferTimeoutError, "The storage did not answer in time"),
    ((ConnectionError,), ConnectError, "No connection to the storage"),
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

Answer = TypeVar("Answer")


class Plugin(NamedTuple):
    """One entry point of a distribution: a backend, or a format, which has no scheme."""

    scheme: str | None
    entry_point: str
    distribution: str
    version: str

    @property
    def label(self) -> str:
        """Name and version of the distribution."""
        return f"{self.distribution} {self.version}".rstrip()

    def error(self, what: str, *, method: str | None = None, uri: str | None = None) -> PluginError:
        """Make the error for a fault of the plug-in."""
        return PluginError(
            f"The {'backend' if self.scheme else 'format'} {self.entry_point} of {self.label} {what}",
            uri=uri,
            hint=f"Update or uninstall it, or name it in {DISABLED}",
            scheme=self.scheme,
            distribution=self.distribution,
            version=self.version,
            method=method,
        )


class Calls:
    """Calls functions of one plug-in, for one URL."""

    def __init__(self, plugin: Plugin, uri: str, options: Mapping[str, Any], limits: Limits) -> None:
        self.plugin, self.limits, self.uri = plugin, limits, redact(uri)
        self._secrets = SecretTexts(uri, options)

    def call(
        self,
        method: str,
        function: Callable[..., Answer],
        *arguments: Any,
        uri: str | None = None,
        byte_range: tuple[int, int] | None = None,
    ) -> Answer:
        """Call a function; raises errors of this package, and the user's interrupt."""
        with self._secrets.masking_errors():
            try:
                return function(*arguments)
            except (StreamerError, KeyboardInterrupt):
                raise
            except BaseException as error:  # a panic of a library in Rust is no Exception
                raise self._error(error, method, uri or self.uri, byte_range) from error

    def _error(self, error: BaseException, method: str, uri: str, byte_range: tuple[int, int] | None) -> StreamerError:
        """Translate an exception of the plug-in."""
        if isinstance(error, BrokenContractError):
            return self.plugin.error(f"broke its contract: {method} {error}", method=method, uri=uri)
        name, text = kind_of(error), str(error)[:SHOWN_CHARACTERS].strip()
        where = f"{name} in {method} of {self.plugin.label}"
        if isinstance(error, MemoryError):
            return OutOfMemoryError(f"no memory left: {where}", uri=uri, hint=text or None)
        cls, words, status = _meaning(error)
        # Before a store is open no object was requested, so a missing file belongs to the plug-in.
        if cls is None or (cls is ObjectNotFoundError and method == HOOK):
            return self.plugin.error(f"raised {name} in {method}{': ' * bool(text)}{text}", method=method, uri=uri)
        return cls(f"{words}: {where}", uri=uri, hint=text or None, byte_range=byte_range, status=status)


def _meaning(error: BaseException) -> tuple[type[StorageError] | None, str, int | None]:
    """Return our class, the message and the HTTP status for an exception; no class if it has no clear meaning."""
    for classes, own, words in _MEANINGS:
        if isinstance(error, classes):
            return own, words, None
    if isinstance(error, OSError) and error.errno in _FULL:
        return StorageError, "The storage is full, or cannot be written", None
    if not is_transient(error):
        return None, "", None
    statuses = [getattr(error, name, None) for name in ("status", "status_code")]
    status = next((int(each) for each in statuses if each in STATUSES), None)
    if status is not None:
        return HttpStatusError, "The server could not answer", status
    return ConnectError, "The connection to the storage failed", None


class GuardedStore:
    """A wrapped store. An attribute that is not in the contract is read from the plug-in's store."""

    root: str

    def __init__(self, store: Any, calls: Calls) -> None:
        self._store, self._calls = store, calls
        self.root = calls.call(HOOK, _root_of, store)
        if getattr(store, "server", None):
            self.server = str(store.server)
        # Attributes of the instance, because `isinstance` with a protocol checks which attributes exist.
        for name in OPTIONAL:
            if getattr(store, name, None) is not None:
                setattr(self, name, getattr(self, f"_{name}"))
        for name in UNGUARDED:
            if getattr(store, name, None) is not None:
                setattr(self, name, getattr(store, name))

    def info(self, path: str) -> ObjectInfo:
        """Describe one object; raises as `Store.info`."""
        return self._calls.call("info", lambda: info_in(self._store.info(path), path), uri=self._uri(path))

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the objects directly in a folder, sorted; raises as `Store.find`."""
        uri, limits = self._uri(prefix) or self._calls.uri, self._calls.limits
        return self._calls.call("find", lambda: listing_in(self._store.find(prefix), prefix, limits, uri), uri=uri)

    def source(self, info: ObjectInfo) -> Source:
        """Return the source of an object's bytes; raises as `Store.source`."""
        return self._calls.call("source", lambda: self._guarded(self._store.source(info), info.uri), uri=info.uri)

    def close(self) -> None:
        """Close the plug-in's store."""
        self._calls.call("close", self._store.close)

    def _guarded(self, answer: Any, uri: str) -> Source:
        """Check a source, wrap its functions, and let it keep the store alive."""
        source, calls = source_in(answer), self._calls
        if isinstance(source, HttpSource) and (refresh := source.refresh) is not None:

            def refreshed() -> Any:
                newer = refresh()
                if not isinstance(newer, HttpSource):
                    raise BrokenContractError(f"returned {kind_of(newer)}, not HttpSource")
                return self._guarded(newer, uri)

            source = replace(source, refresh=partial(calls.call, "refresh", refreshed, uri=uri))
        if isinstance(source, PythonSource):
            source = _guarded_reads(source, calls, uri)
        return replace(source, holder=self._store)

    def _digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        return self._calls.call("digest", lambda: digest_in(self._store.digest(info), info), uri=info.uri)

    def _folders(self, prefix: str) -> list[str]:
        uri, limits = self._uri(prefix) or self._calls.uri, self._calls.limits
        return self._calls.call("folders", lambda: names_in(self._store.folders(prefix), limits, uri), uri=uri)

    def _write(self, path: str, data: bytes) -> None:
        self._calls.call("write", self._store.write, path, data, uri=self._uri(path))

    def _begin_upload(self, path: str, *facts: Any) -> Upload:
        def begun() -> Upload:
            return GuardedUpload(self._store.begin_upload(path, *facts), self._calls, uri)

        uri = self._uri(path)
        return self._calls.call("begin_upload", begun, uri=uri)

    def _remove(self, path: str) -> None:
        self._calls.call("remove", self._store.remove, path, uri=self._uri(path))

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


class GuardedUpload:
    """See `streamer.core.store.uploads.Upload`."""

    def __init__(self, upload: Upload, calls: Calls, uri: str | None) -> None:
        _check_has(upload, "send", "finish", "abort", "parallel_parts")
        self._upload, self._calls, self._uri = upload, calls, uri
        self.parallel_parts = number_in(upload.parallel_parts, "parallel_parts", 1, sys.maxsize)
        self.needs_equal_parts = bool(getattr(upload, "needs_equal_parts", True))

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part: a view of the user's tensors, which the plug-in cannot write to."""

        def sent() -> None:
            send: Callable[..., Any] = self._upload.send
            if (answer := send(offset_bytes, part.toreadonly())) is not None:
                raise BrokenContractError(f"returned {kind_of(answer)}, not None")

        self._calls.call("send", sent, uri=self._uri)

    def finish(self) -> None:
        """Make the object visible; raises as `Upload.finish`."""
        self._calls.call("finish", self._upload.finish, uri=self._uri)

    def abort(self) -> None:
        """Remove the sent parts; raises as `Upload.abort`."""
        self._calls.call("abort", self._upload.abort, uri=self._uri)


def unguarded(store: Any) -> Any:
    """Return the plug-in's own store, for a suite that tests it."""
    return store._store if isinstance(store, GuardedStore) else store


def _guarded_reads(source: PythonSource, calls: Calls, uri: str) -> PythonSource:
    def read(buffer: memoryview, offset: int) -> int:
        return number_in(source.read_into(buffer, offset), "the count of bytes that it wrote", 0, buffer.nbytes)

    def read_into(buffer: memoryview, offset: int) -> int:
        # The buffer is passed on as an argument, because a closure would keep a reference to it.
        return calls.call("read_into", read, buffer, offset, uri=uri, byte_range=(offset, offset + buffer.nbytes))

    return replace(
        source,
        read_into=read_into,
        confirm=source.confirm and partial(calls.call, "confirm", source.confirm, uri=uri),
        timeout_s=source.timeout_s or calls.limits.block_deadline_s,
        owner=calls.plugin.label,
        takes_block=False,
    )


def _root_of(store: Any) -> str:
    _check_has(store, *METHODS, "root")
    if not isinstance(store.root, str):
        raise BrokenContractError(f"gave {kind_of(store.root)} as root, which must be str")
    return str(store.root)


def _check_has(value: Any, *names: str) -> None:
    if lacking := [name for name in names if not hasattr(value, name)]:
        raise BrokenContractError(f"returned {kind_of(value)}, which lacks {', '.join(lacking)}")
