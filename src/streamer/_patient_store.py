"""A store that is asked again while its server is away, and whose errors hold no secret of its URL and options.

Whoever asks sees nothing of it but the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

from streamer import _native
from streamer.core.outages.patience import Patience
from streamer.core.secrets.texts import SecretTexts
from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.sources import DigestingStore, HttpSource, ObjectInfo, PythonSource, RemoteStore, Source, Store
from streamer.plugins.registry import scheme_of

__all__ = ["patient"]

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def patient(store: Store, uri: str, patience: Patience, secrets: SecretTexts) -> Store:
    """Wrap a store, unless it has no server.

    Args:
        store: Any.
        uri: What it was opened for.
        patience: Of the load.
        secrets: Of the URL and its options.
    """
    if scheme_of(uri) == "file" and not isinstance(store, RemoteStore):
        return store
    server = store.server if isinstance(store, RemoteStore) else _server_of(uri)
    return (_PatientDigestingStore if isinstance(store, DigestingStore) else _PatientStore)(
        store, server, patience, secrets
    )


class _PatientStore:
    def __init__(self, store: Any, server: str, patience: Patience, secrets: SecretTexts) -> None:
        self._store, self._server, self._patience, self._secrets = store, server, patience, secrets
        self.root: str = store.root

    def info(self, path: str) -> ObjectInfo:
        found: ObjectInfo = self._ask(lambda: self._store.info(path))
        return found

    def find(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = self._ask(lambda: self._store.find(prefix))
        return found

    def source(self, info: ObjectInfo) -> Source:
        found: Source = self._ask(lambda: self._store.source(info))
        if isinstance(found, HttpSource) and _is_at(found.url, self._server):
            _native.note_answer_of(found.url)  # so that the engine, too, waits for it
        return _guarded(found, self._secrets)

    def close(self) -> None:
        self._store.close()

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        return self._patience.ask(self._server, _keeping(self._secrets, question))


class _PatientDigestingStore(_PatientStore):
    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        found: ObjectDigest | NoDigest = self._ask(lambda: self._store.digest(info))
        return found


def _guarded(source: Source, secrets: SecretTexts) -> Source:
    """Guard what is called while the bytes are read."""
    if isinstance(source, HttpSource) and source.refresh is not None:
        return replace(source, refresh=_keeping(secrets, source.refresh))
    if isinstance(source, PythonSource):
        confirm = source.confirm and _keeping(secrets, source.confirm)
        return replace(source, read_into=_keeping(secrets, source.read_into), confirm=confirm)
    return source


def _keeping(secrets: SecretTexts, function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    @wraps(function)
    def keeping(*arguments: Given.args, **named: Given.kwargs) -> Answer:
        with secrets.kept_out():
            return function(*arguments, **named)

    return keeping


def _server_of(uri: str) -> str:
    """Give scheme, host and port of the last URL of a chain."""
    parts = urlsplit(uri.rpartition("::")[2])
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_at(url: str, server: str) -> bool:
    """Whether a URL is of this server, or of a bucket under its name."""
    host, known = urlsplit(url).netloc.rpartition("@")[2], urlsplit(server).netloc
    return bool(known) and (host == known or host.endswith(f".{known}"))
