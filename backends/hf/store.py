"""Repositories of the Hugging Face Hub: ``hf://owner/name[@revision][/path]``.

Guarantees: the revision is resolved to a commit once, and everything is listed and read from that commit; a file of
that commit in the user's cache is read from there; the token is sent to the Hub's own host only, and never to the
store a redirect names. With ``HF_HUB_OFFLINE=1`` nothing is asked of anybody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from streamer.backends.hf.cache import cached_commit, cached_file, cached_files, cached_sha256, is_offline
from streamer.backends.hf.client import HubClient
from streamer.backends.hf.paths import COMMIT, parse_uri
from streamer.backends.http.probe import Probe
from streamer.backends.http.store import source_of_probe
from streamer.core.errors import ChangedError, ObjectNotFoundError, RangeResponseError
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest
from streamer.core.store.sources import FileSource, HttpSource, ObjectInfo, Source, Store, hookimpl

__all__ = ["HfStore", "streamer_open_store", "streamer_source_kind"]

DEFAULT_LIMITS = Limits()
_OTHER_KINDS = (
    "buckets/",
    "kernels/",
)  # no repositories with commits of files; huggingface_hub's own file system reads them


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the repository of `uri` with ``token`` and ``endpoint``, as of `huggingface_hub.HfFileSystem`.

    Raises:
        UsageError: the URL names no repository.
        OptionError: an option of the wrong kind, or one that is refused.
        CredentialsError: ``token=True`` without a saved login.
    """
    if scheme != "hf" or uri.partition("://")[2].startswith(_OTHER_KINDS):
        return None
    return HfStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Say that files are read over HTTP; those in the cache are read as files."""
    return HttpSource


class HfStore:
    """The files of one commit, each named ``owner/name[@revision]/path``.

    Args:
        uri: The URL.
        storage_options: ``token``, ``endpoint``, and of the HTTP backend's ``verify``, ``proxy`` and ``timeout``.
        limits: The most to take of the Hub's answers.

    Attributes:
        root: `uri` without its scheme.
        server: The Hub's endpoint.
    """

    root: str
    server: str

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._place = parse_uri(uri)
        self.root = self._place.root
        self._hub = HubClient(self._place, storage_options, limits)
        self.server = self._hub.endpoint
        self._guard = threading.Lock()
        self._known_commit: str | None = None
        self._probes: dict[str, Probe] = {}
        self._digests: dict[str, dict[str, str | None]] = {}  # by folder of the commit

    def info(self, path: str) -> ObjectInfo:
        """Find the size of one file, in the cache or with one request.

        Raises:
            ObjectNotFoundError: there is no such file, revision or repository, or none that this token may see.
            AccessDeniedError: the repository is gated.
            StorageError: anything else the Hub or the network has to say.
        """
        uri, inner = self._uri(path), self._inner(path)
        if not inner:
            raise ObjectNotFoundError("This is a repository, not a file", uri=uri, hint="Name a file in it")
        local = cached_file(self._place, self._commit(), inner)
        if local is not None:
            return ObjectInfo(path, uri, os.path.getsize(local), self._commit())
        known = self._probe(path)
        with self._guard:
            self._probes[path] = known
        return ObjectInfo(path, uri, known.size_bytes, self._commit())

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files of one folder of the commit with their sizes.

        Raises:
            ObjectNotFoundError: there is no such revision or repository.
            StorageError: as for `info`.
        """
        commit, folder = self._commit(), self._inner(prefix)
        if is_offline():
            sizes = cached_files(self._place, commit, folder)
        else:
            sizes = ((file.name, file.size_bytes) for file in self._hub.listed(commit, folder, self._uri(prefix)))
        found = sorted((f"{prefix.rstrip('/')}/{name}", size) for name, size in sizes)
        return [ObjectInfo(path, self._uri(path), size, commit) for path, size in found]

    def source(self, info: ObjectInfo) -> Source:
        """Name the file in the cache, else ask the Hub where it is; `HttpSource.refresh` asks again.

        Raises:
            ChangedError: the Hub gives another size than it listed.
            StorageError: as for `info`.
        """
        local = cached_file(self._place, self._commit(), self._inner(info.path))
        if local is not None and os.path.getsize(local) == info.size_bytes:
            return FileSource(local)
        with self._guard:
            known = self._probes.pop(info.path, None)  # its redirect ages, so it serves once
        return self._source(info, known or self._probe(info.path))

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Tell the SHA-256 that names the file in LFS or Xet, from the cache or with one listing of its folder.

        Raises:
            StorageError: as for `find`.
        """
        inner = self._inner(info.path)
        local = cached_file(self._place, self._commit(), inner)
        known = cached_sha256(local) if local is not None else None
        if known is None and not is_offline():
            known = self._listed_sha256(inner)
        if known is None or info.size_bytes is None:
            return NoDigest("the Hub keeps a sha256 of files in LFS and Xet only, which it is not")
        return ObjectDigest("sha256", (PartDigest(info.size_bytes, known),))

    def close(self) -> None:
        """Do nothing: the session is shared, and the sources given out still need it."""

    def _source(self, info: ObjectInfo, known: Probe) -> Source:
        if known.size_bytes != info.size_bytes:
            told = f"{known.size_bytes} bytes, and lists {info.size_bytes}"
            raise ChangedError(f"The Hub gives a file of {told}", uri=info.uri, hint="Load again")
        return source_of_probe(
            known,
            self._hub.client,
            self._hub.start(self._commit(), self._inner(info.path)),
            info,
            partial(self._refreshed, info),
            ca_file=self._hub.access.ca_file,
            proxy=self._hub.access.proxy,
            names_version=True,
        )

    def _refreshed(self, info: ObjectInfo) -> HttpSource:
        source = self._source(info, self._probe(info.path))
        if not isinstance(source, HttpSource):
            raise RangeResponseError("The server no longer honours byte ranges", uri=info.uri, hint="Load again")
        return source

    def _listed_sha256(self, inner: str) -> str | None:
        folder = inner.rpartition("/")[0]
        with self._guard:  # so that the shards of a folder wait for one listing
            if folder not in self._digests:
                files = self._hub.listed(self._known_commit or "", folder, self._uri(self._place.prefix))
                self._digests[folder] = {file.name: file.sha256 for file in files}
            return self._digests[folder].get(inner.rpartition("/")[2])

    def _probe(self, path: str) -> Probe:
        if is_offline():
            raise _absent_offline("file", self._uri(path))
        return self._hub.probe(self._commit(), self._inner(path), self._uri(path))

    def _commit(self) -> str:
        with self._guard:
            if self._known_commit is None:
                self._known_commit = self._resolved_commit()
            return self._known_commit

    def _resolved_commit(self) -> str:
        if COMMIT.fullmatch(self._place.revision):
            return self._place.revision
        uri = self._uri(self._place.prefix)
        if not is_offline():
            return self._hub.commit(uri)
        commit = cached_commit(self._place)
        if commit is None:
            raise _absent_offline("revision", uri)
        return commit

    def _inner(self, path: str) -> str:
        return path[len(self._place.prefix) :].strip("/")

    def _uri(self, path: str) -> str:
        return redact(f"hf://{path}")


def _absent_offline(what: str, uri: str) -> ObjectNotFoundError:
    hint = "HF_HUB_OFFLINE=1 is set: unset it, or download the repository with `hf download` first"
    return ObjectNotFoundError(f"The {what} is not in the cache of the Hub", uri=uri, hint=hint)
