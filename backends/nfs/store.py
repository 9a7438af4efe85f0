"""Files of an NFS server without a mount, through the engine's own client: ``nfs://server[:port]/export/path``.

Guarantees: every wait is bounded; an answer is never older than its call; a path is taken letter by letter, whatever
is in it, and only a ``?`` followed by options ends it. Options (``version``, ``nfsport``, ``mountport``, ``uid``,
``gid``) stand in the URL's query or in `storage_options`, which win; any other is refused. A build without libnfs says
how to get one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamer import _native
from streamer.backends.nfs.url import NfsUrl
from streamer.core.engine.native_errors import error_from_native
from streamer.core.errors import ObjectNotFoundError, StorageError, UnknownSchemeError
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.limits import Limits
from streamer.core.store.sources import NfsSource, ObjectInfo, Store, hookimpl

__all__ = ["NfsStore", "streamer_open_store", "streamer_source_kind"]

DEFAULT_LIMITS = Limits()


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the server that `uri` names; nothing is asked of it yet.

    Raises:
        UnknownSchemeError: this build has no NFS client.
        UsageError: the URL names no server, or is malformed.
        OptionError: an unknown option, or a value out of its bounds.
    """
    if scheme != "nfs":
        return None
    _require_client()
    return NfsStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind(scheme: str) -> type[NfsSource]:
    """Say that these files are read natively.

    Raises:
        UnknownSchemeError: this build has no NFS client.
    """
    del scheme
    _require_client()
    return NfsSource


class NfsStore:
    """The files of one server, each named by its absolute path there.

    Args:
        uri: ``nfs://server[:port]/export/path``, with options as a query.
        storage_options: The same options by name.
        limits: How long the server may take.

    Attributes:
        root: The path of `uri`.
        server: Name or address of the server, with its scheme and port.
    """

    root: str
    server: str

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._url = NfsUrl.parse(uri, storage_options)
        self.server = self._url.shown("")
        self.root = self._url.path.rstrip("/") or "/"
        self._client = _native.NfsClient(
            str(self._url), connect_timeout_s=limits.connect_timeout_s, stall_timeout_s=limits.first_byte_timeout_s
        )

    def info(self, path: str) -> ObjectInfo:
        """Ask the server for size and times of one file, through links.

        Raises:
            ObjectNotFoundError: there is no such file; a folder is not a file.
            AccessDeniedError: a folder on the way may not be searched by this user.
            ConnectError: no server answers there.
            StorageError: anything else the server has to say.
        """
        found = self._ask(self._client.stat, path)
        if found.is_folder:
            raise ObjectNotFoundError("This is a folder, not a regular file", uri=self._uri(path))
        if not found.is_file:
            raise StorageError("This is not a regular file", uri=self._uri(path))
        return self._described(path, found)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the regular files directly in a folder, and its links to files, broken ones too (without a size).

        So is what is no file and has the name of a shard or an index: `info` says what it is.

        Raises:
            StorageError: as for `info`, but an absent folder is an empty one.
        """
        try:
            entries = self._ask(self._client.list, prefix)
        except ObjectNotFoundError:
            return []
        found = [self._listed(f"{prefix.rstrip('/')}/{entry.name}", entry.attributes) for entry in entries]
        return sorted((info for info in found if info is not None), key=lambda info: info.path)

    def source(self, info: ObjectInfo) -> NfsSource:
        """Name the file for the native readers; nothing is asked."""
        return NfsSource(str(self._url.at(info.path)))

    def close(self) -> None:
        """Close the connections that wait for another question."""
        self._client.close()

    def _ask(self, question: Any, path: str) -> Any:
        answer = question(os.fsencode(path))
        if isinstance(answer, _native.ReadError):
            raise error_from_native(answer, uri=self._uri(path), object_size=None, is_http=False)
        return answer

    def _listed(self, path: str, found: _native.NfsAttributes) -> ObjectInfo | None:
        if found.is_file:
            return self._described(path, found)
        is_listed = is_of_checkpoint(path)
        if found.is_link:
            try:
                return self.info(path)
            except ObjectNotFoundError as error:
                is_listed = is_listed or "folder" not in error.message
        # Listed without a size: loading the folder then fails instead of dropping a shard.
        return ObjectInfo(path, self._uri(path), size_bytes=None) if is_listed else None

    def _described(self, path: str, found: _native.NfsAttributes) -> ObjectInfo:
        return ObjectInfo(path, self._uri(path), size_bytes=found.size_bytes, version=found.version)

    def _uri(self, path: str) -> str:
        return self._url.shown(path)


def _require_client() -> None:
    if not _native.has_nfs:
        raise UnknownSchemeError(
            "This build of streamer has no NFS client",
            hint="Mount the export and give the path; or install libnfs (Debian: apt install libnfs-dev) and build "
            "from source: pip install --no-binary streamer streamer",
        )
