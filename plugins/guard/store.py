"""Wraps a plug-in's store for the engine: answers are checked, exceptions are translated, calls are timed.

Guarantees: a method fulfils the contract of `streamer.core.store.sources.Store`, or raises an error of this package
that names the plug-in. Stores of this package are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.sources import ObjectInfo, Source
from streamer.core.store.uploads import Upload
from streamer.plugins.guard.answers import digest_in, info_in, listing_in, names_in, text_in
from streamer.plugins.guard.calls import Calls
from streamer.plugins.guard.plugin import BrokenContractError, kind_of
from streamer.plugins.guard.sources import guarded_source
from streamer.plugins.guard.uploads import GuardedUpload, upload_in

__all__ = ["GuardedStore", "guarded", "unguarded"]

OPTIONAL = ("begin_upload", "digest", "folders", "remove", "write")
METHODS = ("info", "find", "source", "close")
CLOSE_TIMEOUT_S = 10.0  # a load that has all its tensors should not wait longer


class GuardedStore:
    """A wrapped store. An attribute that is not in the contract is read from the plug-in's store.

    Args:
        store: The plug-in's store.
        calls: Calls the methods of the store.

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
        """Close the plug-in's store.

        Raises:
            StreamerError: closing failed; the sources stay valid.
        """
        limit_s = min(CLOSE_TIMEOUT_S, self._calls.limits.block_deadline_s)
        self._calls.ask("close", self._store.close, limit_s=limit_s)

    def _digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        return self._calls.ask("digest", lambda: digest_in(self._store.digest(info)), info.uri)

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
    """Wrap the return value of a plug-in's hook.

    Raises:
        PluginError: it is no store; the message names the missing methods.
    """
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
