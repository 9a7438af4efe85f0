"""A store that is asked again while its server is away; whoever asks sees nothing of it but the time it takes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from streamer import _native
from streamer.core.digests import NoDigest, ObjectDigest
from streamer.core.server_outages import Patience
from streamer.core.sources import DigestingStore, HttpSource, ObjectInfo, RemoteStore, Source, Store
from streamer.plugins.registry import scheme_of

__all__ = ["patient"]


def patient(store: Store, uri: str, patience: Patience) -> Store:
    """Wrap a store, unless it has no server.

    Args:
        store: Any.
        uri: What it was opened for.
        patience: Of the load.
    """
    if scheme_of(uri) == "file" and not isinstance(store, RemoteStore):
        return store
    server = store.server if isinstance(store, RemoteStore) else _server_of(uri)
    return (_PatientDigestingStore if isinstance(store, DigestingStore) else _PatientStore)(store, server, patience)


class _PatientStore:
    def __init__(self, store: Any, server: str, patience: Patience) -> None:
        self._store, self._server, self._patience = store, server, patience
        self.root: str = store.root

    def info(self, path: str) -> ObjectInfo:
        found: ObjectInfo = self._patience.ask(self._server, lambda: self._store.info(path))
        return found

    def find(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = self._patience.ask(self._server, lambda: self._store.find(prefix))
        return found

    def source(self, info: ObjectInfo) -> Source:
        found: Source = self._patience.ask(self._server, lambda: self._store.source(info))
        if isinstance(found, HttpSource) and _is_at(found.url, self._server):
            _native.note_answer_of(found.url)  # so that the engine, too, waits for it
        return found

    def close(self) -> None:
        self._store.close()


class _PatientDigestingStore(_PatientStore):
    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        found: ObjectDigest | NoDigest = self._patience.ask(self._server, lambda: self._store.digest(info))
        return found


def _server_of(uri: str) -> str:
    """Give scheme, host and port of the last URL of a chain."""
    parts = urlsplit(uri.rpartition("::")[2])
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_at(url: str, server: str) -> bool:
    """Whether a URL is of this server, or of a bucket under its name."""
    host, known = urlsplit(url).netloc.rpartition("@")[2], urlsplit(server).netloc
    return bool(known) and (host == known or host.endswith(f".{known}"))
