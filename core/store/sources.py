"""The values of a backend: stores, objects, and the sources that say where the bytes of an object live.

A backend implements `Store`. A source is a frozen value: the engine reads it, without Python where it can, and calls
`HttpSource.refresh` for a new one before the old one expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import pluggy

from streamer.core.options.limits import Limits
from streamer.core.quoting import quoted
from streamer.core.store.digests import NoDigest, ObjectDigest

__all__ = [
    "AnswerChecksum",
    "FileSource",
    "HttpSource",
    "MAX_SIZE_BYTES",
    "NfsSource",
    "DigestingStore",
    "FolderStore",
    "ObjectInfo",
    "PythonSource",
    "RemoteStore",
    "Source",
    "Store",
    "StoreHooks",
    "WritableStore",
    "hookimpl",
    "hookspec",
]

PROJECT_NAME = "streamer"
MAX_SIZE_BYTES = (1 << 63) - 1  # off_t of every system; the engine counts so, too
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a store.

    Attributes:
        path: The store's own name of the object; what `Store.info` and `Store.source` take.
        uri: The object's URL as a user would write it, without secrets, for messages.
        size_bytes: Its size, or None where the listing has none.
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
        is_remote: The file system is on another machine (NFS, SMB, …): each read waits for a network, so more are
            made at a time.
        inside: Folder in which the file must lie once it is open; None: links may lead anywhere.
        needs_cache: The file system reads ahead itself (NFS, FUSE, Lustre, …): files are read past the page cache only
            if the user sets ``direct_io``.
        holder: As of `HttpSource`.
    """

    path: str
    is_remote: bool = False
    inside: str | None = None
    needs_cache: bool = False
    holder: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class AnswerChecksum:
    """A checksum that a server sends with each range, where the request asks for one.

    Attributes:
        request_header: Header that asks for it: ``("x-ms-range-get-content-crc64", "true")``.
        answer_header: Response header that holds it, in base64.
        algorithm: A key of `streamer.core.store.digests.CHECKSUMS`.
        byte_order: Of the value: ``"big"`` has the most significant byte first.
        max_bytes: Largest range for which the server sends one; no request asks for more.
    """

    request_header: tuple[str, str]
    answer_header: str
    algorithm: str
    byte_order: Literal["big", "little"]
    max_bytes: int


@dataclass(frozen=True)
class HttpSource:
    """An HTTP(S) URL that answers ranged GETs, read by the native reactors.

    Attributes:
        url: Complete URL; its query may hold a signature and is never shown.
        headers: Sent with every request, beside the engine's own ``Range``. One with a line end is a ValueError.
        version: The value of `version_header` in every answer; None pins the value in the first answer.
        version_header: Response header with the version. With ``ETag`` and ``Last-Modified`` each request
            also carries the matching precondition (``If-Match``, ``If-Unmodified-Since``); for another header the
            URL should hold one. None compares nothing, as the URL itself names one version.
        expires_at_s: Unix time after which the URL or headers are refused, or None.
        refresh: Returns a source of the same object and version, with new credentials or at its new place; called while
            the consumer waits, before `expires_at_s`, and after an answer 401, "expired", "your clock is wrong" or a
            redirect.
        is_redirect: A redirect named the URL, so that `refresh` is called after any answer 403, too.
        ca_file: PEM bundle to trust instead of the system's, or None.
        client_cert: PEM file of the certificate that is shown to a server which demands one, or None.
        client_key: PEM file of its key, without a passphrase; None if that is in the same file.
        proxy: Proxy URL for these requests; None obeys ``HTTPS_PROXY`` / ``NO_PROXY``.
        answer_checksum: How the server sends a checksum of each answer, or None; asked for only under
            ``verify="auto"``.
        holder: Kept as long as the source; filled in with the store of a plug-in, which so outlives its `close`.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str | None = None
    version_header: str | None = "ETag"
    expires_at_s: float | None = None
    refresh: Callable[[], HttpSource] | None = field(default=None, repr=False, compare=False)
    ca_file: str | None = None
    proxy: str | None = field(default=None, repr=False)
    answer_checksum: AnswerChecksum | None = None
    is_redirect: bool = False
    client_cert: str | None = None
    client_key: str | None = None
    holder: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a header that would begin another one; its value is not shown, as it may be secret."""
        for name, value in self.headers.items() if isinstance(self.headers, Mapping) else ():
            if any(isinstance(part, str) and {*part} & {*"\r\n\0"} for part in (name, value)):
                raise ValueError(f"the header {quoted(name)} holds a CR, LF or NUL, which would end it there")


@dataclass(frozen=True)
class NfsSource:
    """A file of an NFS server, read by the native NFS client without a mount.

    Attributes:
        url: ``nfs://server[:port]/export/path[?option=value&…]``. The path is taken letter by letter; what follows the
            last ``?`` is options: ``version`` (4 by default), ``nfsport``, ``mountport``, ``uid``, ``gid``.
        holder: As of `HttpSource`.
    """

    url: str
    holder: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class PythonSource:
    """Any object that Python can read; Python threads read it into the engine's memory.

    Attributes:
        read_into: ``read_into(buffer, offset_bytes)`` fills the whole writable buffer from that offset and
            returns the bytes written; called from several threads at once unless `max_threads` is 1. It must
            keep no reference to the buffer.
        max_threads: Most calls at a time, or None for the engine's default.
        confirm: Called when all wanted bytes of the object are read, before the last of them are handed out; raises
            `ChangedError` if it is no longer the object it was at the first read. None where that cannot be checked.
        remark: Why the object is read in this slower way, for the load's report, or None.
        timeout_s: Longest time that one call of `read_into`, with `confirm` after it, may take; the load fails when it
            takes longer. None: ``block_deadline_s`` of `streamer.Options` for the stores of plug-ins.
        owner: Whose functions these are, for messages; filled in for the stores of plug-ins.
        holder: As of `HttpSource`.
    """

    read_into: Callable[[memoryview, int], int]
    max_threads: int | None = None
    confirm: Callable[[], None] | None = None
    remark: str | None = None
    timeout_s: float | None = None
    owner: str | None = field(default=None, repr=False, compare=False)
    holder: object = field(default=None, repr=False, compare=False)


Source: TypeAlias = FileSource | HttpSource | NfsSource | PythonSource


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
        """Say where the bytes of the object live, with one request at most. Called from several threads."""

    def close(self) -> None:
        """Take note that no question follows. Sources that were returned stay valid: they are read afterwards."""


@runtime_checkable
class DigestingStore(Protocol):
    """A `Store` whose storage keeps digests of its objects."""

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Return the digest that the storage keeps of the version that `info` describes, without reading its bytes.

        Called from several threads, for ``verify="auto"`` only.

        Raises:
            StorageError: the store cannot be asked.
        """


@runtime_checkable
class RemoteStore(Protocol):
    """A `Store` that names its server; for any other, that is the host of the URL.

    Attributes:
        server: ``scheme://host:port``, or whatever names the server in a message, without secrets. One that is away is
            waited for, if it has answered before in this process.
    """

    server: str


@runtime_checkable
class FolderStore(Protocol):
    """A `Store` that lists sub-folders; of any other, only the files directly in a folder can be pulled."""

    def folders(self, prefix: str) -> list[str]:
        """Name every folder directly in a folder, sorted, without slashes; of an absent folder, none.

        A name is as the storage has it: it may be one that no disk should have.
        """


@runtime_checkable
class WritableStore(Protocol):
    """A `Store` to which small files can be written."""

    def write(self, path: str, data: bytes) -> None:
        """Write one small file, whole or not at all where the storage can do that.

        Raises:
            AccessDeniedError: it may not be written.
            StorageError: it could not.
        """


class StoreHooks:
    """The hook specification that every backend, ours included, implements."""

    @hookspec(firstresult=True)
    def streamer_open_store(
        self, scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits
    ) -> Store | None:
        """Open the store that holds `uri`. An implementation takes those of the arguments that it uses.

        Args:
            scheme: Lower-case scheme of the URL: ``"s3"``, or ``"file"`` for a plain path.
            uri: The whole URL as the user gave it, chained URLs (``simplecache::s3://…``) included.
            storage_options: The user's options, to be handed to fsspec unchanged.
            limits: The most to take of a server's answers.

        Returns:
            The store, or None when this plug-in does not serve the URL.
        """

    @hookspec(firstresult=True)
    def streamer_source_kind(self, scheme: str) -> type[Source] | None:
        """Say which source the stores of `scheme` give, for ``python -m streamer plugins``. Optional.

        Args:
            scheme: One of the entry points' names of this plug-in.

        Returns:
            `FileSource`, `HttpSource` or `NfsSource` (read natively), or `PythonSource`.
        """
