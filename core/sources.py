"""What a backend answers: where the bytes of an object live, and which version of it.

A backend implements `Store`; it never reads weight bytes itself when a native reader exists. A source is a
frozen value: the engine reads it, and asks `HttpSource.refresh` for a new one before the old one expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pluggy

__all__ = [
    "FileSource",
    "HttpSource",
    "ObjectInfo",
    "PythonSource",
    "Source",
    "Store",
    "StoreHooks",
    "hookimpl",
    "hookspec",
]

PROJECT_NAME = "streamer"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a store.

    Attributes:
        path: The store's own name of the object; what `Store.info` and `Store.source` take.
        uri: The object's URL as a user would write it, without secrets, for messages.
        size_bytes: Its size, or None where only reading tells.
        version: Opaque version (an ETag with its quotes, a generation), or None where the store has none.
    """

    path: str
    uri: str
    size_bytes: int | None
    version: str | None = None


@dataclass(frozen=True)
class FileSource:
    """A local file, read by native threads with ``preadv2``.

    Attributes:
        path: Absolute path on a mounted file system.
    """

    path: str


@dataclass(frozen=True)
class HttpSource:
    """An HTTP(S) URL that answers ranged GETs, read by the native reactors.

    Attributes:
        url: Complete URL; its query may hold a signature and is never shown.
        headers: Sent with every request, beside the engine's own ``Range``.
        version: Sent as ``If-Match`` and compared with the ``ETag`` of every answer; None to pin nothing.
        expires_at_s: Unix time after which the URL or headers are refused, or None.
        refresh: Gives the same object under new credentials; called on the consumer's thread.
        ca_file: PEM bundle to trust instead of the system's, or None.
        proxy: Proxy URL for these requests; None obeys ``HTTPS_PROXY`` / ``NO_PROXY``.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str | None = None
    expires_at_s: float | None = None
    refresh: Callable[[], HttpSource] | None = field(default=None, repr=False, compare=False)
    ca_file: str | None = None
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PythonSource:
    """Any readable thing, read by Python threads into the engine's memory.

    Attributes:
        read_into: ``read_into(buffer, offset_bytes)`` fills the whole writable buffer from that offset and
            returns the bytes written; called from several threads at once unless `max_threads` is 1. It must
            keep no reference to the buffer.
        max_threads: Most calls at a time, or None for the engine's default.
    """

    read_into: Callable[[memoryview, int], int]
    max_threads: int | None = None


Source: TypeAlias = FileSource | HttpSource | PythonSource


@runtime_checkable
class Store(Protocol):
    """One storage under one set of credentials, opened for one URL. Thread-safe; holds no open object.

    Attributes:
        root: The store's own path of that URL (a file, a folder or a glob); ``/`` separates its segments.
    """

    root: str

    def info(self, path: str) -> ObjectInfo:
        """Describe one object.

        Raises:
            ObjectNotFoundError: there is no such object.
            AccessDeniedError: it may exist, but not for these credentials.
        """

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List every object directly in a folder (not in its sub-folders), sorted by path.

        An absent or empty folder gives an empty list. The answer is never older than the call.
        """

    def source(self, info: ObjectInfo) -> Source:
        """Say where the bytes of the object live. No request is made."""

    def close(self) -> None:
        """Let go of connections. Sources given out stay valid."""


class StoreHooks:
    """The hook specification that every backend, ours included, implements."""

    @hookspec(firstresult=True)
    def streamer_open_store(self, scheme: str, uri: str, storage_options: Mapping[str, Any]) -> Store | None:
        """Open the store that holds `uri`.

        Args:
            scheme: Lower-case scheme of the URL: ``"s3"``, or ``"file"`` for a plain path.
            uri: The whole URL as the user gave it, chained URLs (``simplecache::s3://…``) included.
            storage_options: The user's options, to be handed to fsspec unchanged.

        Returns:
            The store, or None when this plug-in does not serve the URL.
        """
