"""A listing file system for storages that fsspec does not know (``nfs://``, plug-ins)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem

from streamer._locate_shards import opened_store
from streamer.core.errors import ObjectNotFoundError
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import hidden_uri
from streamer.core.store.presence import PeekingStore
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.fsspec.read_only import ReadOnly

__all__ = ["StoreFileSystem"]


class StoreFileSystem(ReadOnly, AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists the files and folders of a store; paths are URLs without their scheme.

    Args:
        scheme: The scheme of the URLs.
        options: The storage options.
        settings: How requests are made.
    """

    cachable = False

    def __init__(self, scheme: str, options: Mapping[str, Any], settings: Settings) -> None:
        super().__init__()
        self.protocol = scheme
        self._options, self._settings = options, settings

    def info(self, path: str, **_named: Any) -> dict[str, Any]:
        """Describe a file or folder."""
        path = self._strip_protocol(path)
        with self._store(path) as store:
            try:
                return _entry(path, store.info(store.root))
            except ObjectNotFoundError:
                if store.find(store.root) or _folders(store):
                    return _folder(path)
                raise

    def ls(self, path: str, detail: bool = True, **_named: Any) -> list[Any]:
        """List the entries directly in a folder; a file lists itself."""
        path = self._strip_protocol(path)
        with self._store(path) as store:
            files = [_entry(f"{path}/{each.path.rpartition('/')[2]}", each) for each in store.find(store.root)]
            entries = files + [_folder(f"{path}/{name}") for name in _folders(store)]
            if not entries:
                entries = [_entry(path, store.info(store.root))]
        entries.sort(key=lambda entry: str(entry["name"]))
        return entries if detail else [entry["name"] for entry in entries]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return (path.partition("://")[2] if "://" in path else path).rstrip("/")

    def _store(self, path: str) -> Any:
        return opened_store(hidden_uri(f"{self.protocol}://{path}"), self._options, None, self._settings)


def _folders(store: Store) -> list[str]:
    try:
        names = store.peek(store.root) if isinstance(store, PeekingStore) else []
    except NotImplementedError:  # the plug-in cannot list folders
        names = []
    return [name.rstrip("/") for name in names if name.endswith("/")]


def _entry(path: str, info: ObjectInfo) -> dict[str, Any]:
    return {"name": path, "size": info.size_bytes, "type": "file", "version": info.version}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}
