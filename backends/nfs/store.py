"""Files of an NFS server without a mount, through the engine's own client: ``nfs://server[:port]/export/path``.

Guarantees: every wait is bounded. An answer is never older than its call. A path is taken literally. The text after the
last ``?`` holds options if it has their form (``name=value``, joined by ``&``); otherwise the ``?`` is part of a name
or a glob; the engine parses the same URLs by the same rules. Options (``version``, ``nfsport``, ``mountport``, ``uid``,
``gid``) are in the URL's query or in `storage_options`, which win; any other option is refused. In a build without
libnfs the error says how to get a build with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamer import _native
from streamer.backends.option_names import check_option_names
from streamer.core.engine.native_errors import error_from_native
from streamer.core.errors import ObjectNotFoundError, OptionError, StorageError, UnknownSchemeError, UsageError
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.store.identities import digest_of
from streamer.core.store.sources import NfsSource, ObjectInfo, Store, hookimpl

SCHEME = "nfs://"
USUAL_VERSION = 4
# Lowest and highest value. The engine sets the options of libnfs that change how it reads; they are not allowed here.
BOUNDS = {
    "version": (3, 4),
    "nfsport": (1, 65535),
    "mountport": (1, 65535),
    "uid": (0, 2**31 - 1),
    "gid": (0, 2**31 - 1),
}

_OPTIONS = re.compile(r"[a-z-]+=[^&]*(&[a-z-]+=[^&]*)*")
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^:@\[\]/]+)(:(?P<port>[0-9]+))?")


@dataclass(frozen=True)
class NfsUrl:
    """One path on one server."""

    host: str  # name or address of the server, an IPv6 address in brackets
    path: str  # absolute path on the server
    options: Mapping[str, int]  # options of the URL and the caller, by name

    @classmethod
    def parse(cls, uri: str, storage_options: Mapping[str, Any]) -> NfsUrl:
        """Parse a URL; `storage_options` win over its query."""
        rest = uri[len(SCHEME) :] if uri[: len(SCHEME)].lower() == SCHEME else ""
        before, mark, query = rest.rpartition("?")
        has_options = bool(mark) and _OPTIONS.fullmatch(query) is not None
        authority, slash, path = (before if has_options else rest).partition("/")
        server = _SERVER.fullmatch(authority)
        if server is None:
            raise UsageError(
                "An NFS URL has no user and no password" if "@" in authority else "The URL names no NFS server",
                uri=redact(uri),
                hint="Expected nfs://server[:port]/export/path?version=4; name a user by number, with uid= and gid=",
            )
        if "\0" in path:
            raise UsageError("A path cannot hold a NUL", uri=redact(uri).replace("\0", ""))
        own = {"nfsport": server["port"]} if server["port"] else {}
        if has_options:
            pairs = (pair.partition("=")[::2] for pair in query.split("&"))
            own.update({str(name): value for name, value in pairs})
        _check_names(own)
        check_option_names("nfs://", storage_options, BOUNDS)
        own.update({name: storage_options[name] for name in BOUNDS if storage_options.get(name) is not None})
        return cls(server["host"], slash + path or "/", {name: _number(name, value) for name, value in own.items()})

    @property
    def server(self) -> str:
        """The server's name in the engine. A server with an unusual NFS version has a name of its own."""
        version = self.options.get("version", USUAL_VERSION)
        return self.shown("" if version == USUAL_VERSION else f"?version={version}")

    def at(self, path: str) -> NfsUrl:
        """Return the URL of another path on the same server."""
        return replace(self, path=path)

    def shown(self, path: str) -> str:
        """Return the URL of a path for messages: without options, and with the port in its usual place."""
        port = f":{self.options['nfsport']}" if "nfsport" in self.options else ""
        return f"{SCHEME}{self.host}{port}{path}"

    def __str__(self) -> str:
        """Return the URL for the engine; it always has options, so that no ``?`` of the path is read as their start."""
        options = {"version": USUAL_VERSION, **self.options}
        return f"{SCHEME}{self.host}{self.path}?" + "&".join(f"{name}={value}" for name, value in options.items())


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in BOUNDS:
            raise OptionError(f"nfs:// has no option {name[:40]!r}", hint=f"There are {', '.join(BOUNDS)}")


def _number(name: str, value: object) -> int:
    low, high = BOUNDS[name]
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise OptionError(f"{name} must be a number from {low} to {high}, not {str(value)[:40]!r}")
    return number


DEFAULT_LIMITS = Limits()
_NAME_A_FILE = "Name a regular file"
_LEAVE_IT_OUT = f"{_NAME_A_FILE}, or leave it out (--exclude)"


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the server that `uri` names; no request is sent yet."""
    if scheme != "nfs":
        return None
    _require_client()
    return NfsStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind() -> type[NfsSource]:
    """Return the kind of source: files of NFS servers are read natively."""
    _require_client()
    return NfsSource


class NfsStore:
    """The files of one server, each named by its absolute path there."""

    root: str  # the path of `uri`
    # Name or address of the server, with its scheme and port, and the NFS version unless it is the usual one.
    server: str

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._url = NfsUrl.parse(uri, storage_options)
        self.server = self._url.server
        self.root = self._url.path.rstrip("/") or "/"
        self._client = _native.NfsClient(
            str(self._url), connect_timeout_s=limits.connect_timeout_s, stall_timeout_s=limits.first_byte_timeout_s
        )

    def info(self, path: str) -> ObjectInfo:
        """Request size and times of one file; links are followed."""
        attributes = self._request(self._client.stat, path)
        if attributes.is_folder:
            raise ObjectNotFoundError("This is a folder, not a regular file", uri=self._uri(path), hint=_NAME_A_FILE)
        if not attributes.is_file:
            raise StorageError("This is not a regular file", uri=self._uri(path), hint=_LEAVE_IT_OUT)
        return self._info(path, attributes)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the regular files directly in a folder, and its links to files.

        Broken links, FIFOs, sockets and devices, and folders with the name of a shard or an index are listed without a
        size: `info` raises an error for these.
        """
        try:
            entries = self._request(self._client.list, prefix)
        except ObjectNotFoundError:
            return []
        infos = [self._listed(f"{prefix.rstrip('/')}/{entry.name}", entry.attributes) for entry in entries]
        return sorted((info for info in infos if info is not None), key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the files and folders directly in a folder."""
        entries = self._request(self._client.list, prefix or "/")
        return sorted(entry.name + "/" * entry.attributes.is_folder for entry in entries)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder, and its links to folders; raises as `find`."""
        try:
            entries = self._request(self._client.list, prefix or "/")
        except ObjectNotFoundError:
            return []
        return sorted(entry.name for entry in entries if entry.attributes.is_folder)

    def source(self, info: ObjectInfo) -> NfsSource:
        """Return the source for the native readers; no request is sent."""
        return NfsSource(str(self._url.at(info.path)))

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of the URL with its user and export."""
        return digest_of(str(self._url.at(info.path)))

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()

    def _request(self, method: Any, path: str) -> Any:
        answer = method(os.fsencode(path))
        if isinstance(answer, _native.ReadError):
            raise error_from_native(answer, uri=self._uri(path), object_size=None, is_http=False)
        return answer

    def _listed(self, path: str, attributes: _native.NfsAttributes) -> ObjectInfo | None:
        if attributes.is_file:
            return self._info(path, attributes)
        is_listed = is_of_checkpoint(path) or not (attributes.is_folder or attributes.is_link)
        if attributes.is_link:
            try:
                return self.info(path)
            except ObjectNotFoundError as error:
                is_listed = is_listed or "folder" not in error.message
        # The entry is listed without a size, so that a load or a pull of the folder fails instead of dropping it.
        return ObjectInfo(path, self._uri(path), size_bytes=None) if is_listed else None

    def _info(self, path: str, attributes: _native.NfsAttributes) -> ObjectInfo:
        return ObjectInfo(path, self._uri(path), size_bytes=attributes.size_bytes, version=attributes.version)

    def _uri(self, path: str) -> str:
        return self._url.shown(path)


def _require_client() -> None:
    if not _native.has_nfs:
        raise UnknownSchemeError(
            "This build of streamer has no NFS client",
            hint="Mount the export and give the path; or install libnfs (Debian: apt install libnfs-dev) and build "
            "streamer from its repository",
        )
