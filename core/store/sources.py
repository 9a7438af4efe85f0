"""The values of a backend: stores, objects, and sources, which describe where the bytes of an object are.

A backend implements `Store`. A source is a frozen value: the engine reads from it, without Python if possible, and
calls `HttpSource.refresh` for a new source before the old one expires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import pluggy

from streamer.core.options.limits import Limits
from streamer.core.quoting import quoted
from streamer.core.store.versions import is_same_version, settled_at

if TYPE_CHECKING:
    from streamer.core.store.digests import NoDigest, ObjectDigest

PROJECT_NAME = "streamer"
MAX_SIZE_BYTES = (1 << 63) - 1  # the limit of off_t on every system, and of the engine
_LINE_END = re.compile("[\r\n\0]")
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a store.

    Attributes:
        path: The store's own name of the object, as in `Store.info` and `Store.source`.
        uri: The object's URL as a user would write it, without secrets, for messages.
        size_bytes: Its size, or None if the listing has none.
        version: Opaque version (an ETag with its quotes, a generation), or None if the store has none.
        settled_at: The time (by `time.monotonic`) from which on the version tells these bytes from any others, if it is
            looked up again; 0 if it does so now. It is derived from the version unless the store passes it.
    """

    path: str
    uri: str
    size_bytes: int | None
    version: str | None = None
    settled_at: float = field(default=nan, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find out how far the version can be trusted; see `streamer.core.store.versions`."""
        if isnan(self.settled_at):
            # A plug-in may have passed anything; what is no text is refused where its answer is checked.
            version = self.version if isinstance(self.version, str) else None
            object.__setattr__(self, "settled_at", settled_at(version))

    @property
    def is_settled(self) -> bool:
        """Whether the version tells these bytes from any others."""
        return self.settled_at == 0

    @property
    def is_weak(self) -> bool:
        """Whether the version never tells these bytes from any others, however old it gets."""
        return self.settled_at == inf

    def is_same_as(self, other: ObjectInfo | None) -> bool:
        """Whether another description of the object, or None, is of the same version and size."""
        return (
            other is not None and self.size_bytes == other.size_bytes and is_same_version(self.version, other.version)
        )


@dataclass(frozen=True)
class FileSource:
    """A local file, read by native threads with ``preadv2``.

    Attributes:
        path: Absolute path on a mounted file system.
        is_remote: The file system is on another machine (NFS, SMB, …): each read waits for a network, so more reads
            run at a time.
        inside: Folder in which the opened file must lie; None allows links to any place.
        needs_cache: The file system reads ahead itself (NFS, FUSE, Lustre, …): reads only bypass the page cache if the
            user sets ``direct_io``.
        holder: As in `HttpSource`.
    """

    path: str
    is_remote: bool = False
    inside: str | None = None
    needs_cache: bool = False
    holder: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class AnswerChecksum:
    """A checksum that a server sends with each range, if a header of the request demands it.

    Attributes:
        request_header: Header that demands it: ``("x-ms-range-get-content-crc64", "true")``.
        answer_header: Response header that holds it, in base64.
        algorithm: A key of `streamer.core.store.digests.CHECKSUMS`.
        byte_order: Byte order of the value: ``"big"`` has the most significant byte first.
        max_bytes: Largest range for which the server sends a checksum; no request is larger.
    """

    request_header: tuple[str, str]
    answer_header: str
    algorithm: Literal["crc32", "crc32c", "crc64nvme"]
    byte_order: Literal["big", "little"]
    max_bytes: int


@dataclass(frozen=True)
class HttpSource:
    """An HTTP(S) URL that answers ranged GETs, read by the native reactors.

    Attributes:
        url: Complete URL; its query may hold a signature and is never shown.
        headers: Sent with every request, beside the engine's own ``Range``. A line end in one, or in another text of a
            request, is a ValueError.
        version: The value of `version_header` in every answer; None pins the value in the first answer.
        version_header: Response header with the version. With ``ETag`` and ``Last-Modified`` each request
            also carries the matching precondition (``If-Match``, ``If-Unmodified-Since``); for another header the
            URL should hold one. None compares nothing, if the URL itself names one version.
        expires_at_s: Unix time after which the URL or headers are refused, or None.
        refresh: Returns a source of the same object and version, with new credentials or at its new place. It is called
            before `expires_at_s`, and after an answer 401, "expired", "your clock is wrong" or a redirect; the consumer
            waits for it.
        is_redirect: A redirect named the URL, so `refresh` is also called after any answer 403.
        ca_file: PEM bundle to trust instead of the system's, or None.
        client_cert: PEM file of the certificate for a server that demands one, or None.
        client_key: PEM file of its key, without a passphrase; None if the key is in the same file.
        proxy: Proxy URL for these requests; None obeys ``HTTPS_PROXY`` / ``NO_PROXY``.
        answer_checksum: How the server sends a checksum of each answer, or None; requested only under
            ``verify="auto"``.
        offset_bytes: Where the object begins, if it is a part of what the URL names, such as a member of an archive.
        whole_bytes: Size of what the URL names; needed for a part, which has a size of its own.
        checks_host: Whether the server's certificate must name its host; False if the CA of `ca_file` alone decides.
        holder: An object that is kept alive as long as the source; set to the store of a plug-in.
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
    offset_bytes: int = 0
    whole_bytes: int | None = None
    checks_host: bool = True
    holder: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a text that would begin another header; it is not shown, because it may be secret."""
        headers = self.headers if isinstance(self.headers, Mapping) else {}
        for name, value in [("url", self.url), ("version", self.version), ("proxy", self.proxy), *headers.items()]:
            if any(isinstance(part, str) and _LINE_END.search(part) for part in (name, value)):
                raise ValueError(f"{quoted(name)} of an HttpSource holds a CR, LF or NUL, which would end it there")


def header_lines(headers: Mapping[str, str]) -> list[str]:
    """Return headers as libcurl takes them: it would leave out a name with a colon and nothing behind it."""
    return [f"{name}: {value}" if value else f"{name};" for name, value in headers.items()]


@dataclass(frozen=True)
class NfsSource:
    """A file of an NFS server, read by the native NFS client without a mount.

    Attributes:
        url: ``nfs://server[:port]/export/path[?option=value&…]``. The path is taken literally. Options follow the last
            ``?``: ``version`` (4 by default), ``nfsport``, ``mountport``, ``uid``, ``gid``.
        holder: As in `HttpSource`.
    """

    url: str
    holder: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class PythonSource:
    """Any object that Python can read; Python threads read it into the engine's memory.

    Attributes:
        read_into: ``read_into(buffer, offset_bytes)`` fills the whole writable buffer from that offset and returns the
            bytes written; called from several threads at once unless `max_threads` is 1. It must keep no reference to
            the buffer.
        max_threads: Maximum number of calls at a time, or None for the engine's default.
        confirm: Called when all requested bytes of the object are read, before the last of them are delivered; raises
            `ChangedError` if the object changed since the first read. None if that cannot be checked.
        remark: Reason for reading in Python, for the load's report, or None.
        timeout_s: The load fails if `read_into` and `confirm` take longer. None: ``block_deadline_s`` for plug-ins.
        owner: Owner of these functions, for messages; set for the stores of plug-ins.
        holder: As in `HttpSource`.
        takes_block: `read_into` gets the engine's block, not a buffer, for its ``copy_in``; only within streamer.
    """

    read_into: Callable[[memoryview, int], int]
    max_threads: int | None = None
    confirm: Callable[[], None] | None = None
    remark: str | None = None
    timeout_s: float | None = None
    owner: str | None = field(default=None, repr=False, compare=False)
    holder: object = field(default=None, repr=False, compare=False)
    takes_block: bool = field(default=False, repr=False, compare=False)


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
            AccessDeniedError: the credentials may not read it; it may not even exist.
        """

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List every object directly in a folder (not in its sub-folders), sorted by path.

        The list of a missing or empty folder is empty. The answer is never older than the call.
        """

    def source(self, info: ObjectInfo) -> Source:
        """Return the source of the object's bytes, with at most one request. Called from several threads."""

    def close(self) -> None:
        """End the use of the store. Sources that it returned stay valid: they are read afterwards."""


@runtime_checkable
class DigestingStore(Protocol):
    """A `Store` whose storage keeps digests of its objects."""

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Return the digest that the storage keeps of the version that `info` describes, without reading its bytes.

        Called from several threads, for ``verify="auto"`` only.

        Raises:
            StorageError: the storage did not answer.
        """


@runtime_checkable
class IdentifyingStore(Protocol):
    """A `Store` that names what decides the bytes of its objects, so that loads of several processes can share them."""

    def identity(self, info: ObjectInfo) -> str:
        """Return a `streamer.core.store.identities.digest_of` the object's address, login and headers.

        It is the same in each process, and after a renewal of the login; empty if nothing is. Asks the storage nothing.
        """


@runtime_checkable
class RemoteStore(Protocol):
    """A `Store` that names its server; for any other store, the server is the host of the URL.

    Attributes:
        server: ``scheme://host:port``, or another name of the server for messages, without secrets. Requests wait for
            a server that is away if it has answered before in this process.
    """

    server: str


@runtime_checkable
class FolderStore(Protocol):
    """A `Store` that lists sub-folders; from any other store, only the files directly in a folder can be pulled."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names of all folders directly in a folder, sorted, without slashes; a missing folder has none.

        The names are those of the storage: a name may be unsafe on a disk.
        """


@runtime_checkable
class WritableStore(Protocol):
    """A `Store` to which small files can be written."""

    def write(self, path: str, data: bytes) -> None:
        """Write one small file, completely or not at all if the storage supports it.

        Raises:
            AccessDeniedError: the file may not be written.
            StorageError: the file could not be written.
        """


class StoreHooks:
    """The hook specification that every backend, ours included, implements."""

    @hookspec(firstresult=True)
    def streamer_open_store(
        self, scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits
    ) -> Store | None:
        """Open the store that holds `uri`. An implementation only declares the arguments that it uses.

        Returns:
            The store, or None if this plug-in does not serve the URL.
        """

    @hookspec(firstresult=True)
    def streamer_source_kind(self, scheme: str) -> type[Source] | None:
        """Return the kind of source that the stores of `scheme` return, for ``python -m streamer plugins``. Optional.

        Returns:
            `FileSource`, `HttpSource` or `NfsSource` (read natively), or `PythonSource`.
        """
