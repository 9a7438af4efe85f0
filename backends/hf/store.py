"""Repositories of the Hugging Face Hub: ``hf://owner/name[@revision][/path]``.

What is written shows up as one commit, on top of the commit that was looked at (`streamer.backends.hf.upload`).

Guarantees: the revision is resolved to a commit once, and everything is listed and read from that commit. If the user's
cache has a file of that commit, the file is read from the cache. The token is sent only to the Hub's own host, never to
the store that a redirect names. With ``HF_HUB_OFFLINE=1`` no request is sent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from streamer.backends.hf.cache import (
    cached_commit,
    cached_file,
    cached_files,
    cached_folders,
    cached_sha256,
    is_offline,
)
from streamer.backends.hf.client import HubClient
from streamer.backends.hf.paths import COMMIT, parse_uri
from streamer.backends.http.probe import Probe
from streamer.backends.http.store import source_of_probe
from streamer.core.errors import ChangedError, ObjectNotFoundError, RangeResponseError
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest
from streamer.core.store.identities import digest_of
from streamer.core.store.sources import FileSource, HttpSource, ObjectInfo, Source, Store, hookimpl

if TYPE_CHECKING:
    from streamer.backends.hf.commit import HubCommit
    from streamer.backends.hf.upload import HubUpload

DEFAULT_LIMITS = Limits()
_PUBLIC_HUB = "huggingface.co"
_BUCKETS = "buckets/"
_KERNELS = "kernels/"  # huggingface_hub's own file system reads them


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the repository or bucket of `uri` with the options of `huggingface_hub.HfFileSystem`."""
    place = uri.partition("://")[2]
    if scheme != "hf" or place.startswith(_KERNELS):
        return None
    if place.startswith(_BUCKETS):
        from streamer.backends.hf.bucket import BucketStore  # noqa: PLC0415 (few loads need it)

        return BucketStore(uri, storage_options, limits)
    return HfStore(uri, storage_options, limits)


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: files of the Hub are read over HTTP; a file in the cache is read as a file."""
    return HttpSource


class HfStore:
    """The files of one commit, each named ``owner/name[@revision]/path``."""

    root: str  # `uri` without its scheme
    server: str  # the Hub's endpoint

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._place = parse_uri(uri)
        self.root = self._place.root
        self._hub = HubClient(self._place, storage_options, limits)
        self.server = self._hub.endpoint
        self._guard = threading.Lock()
        self._pinned_commit: str | None = None
        self._probes: dict[str, Probe] = {}
        self._digests: dict[str, dict[str, str | None]] = {}  # by folder of the commit
        self._options, self._writing = storage_options, threading.Lock()
        self._is_absent = False  # whether the repository is not there, and the first upload makes it
        self._writes: HubCommit | None = None  # what the next commit has

    def info(self, path: str) -> ObjectInfo:
        """Return the size of one file, from the cache or by one request."""
        uri, inner = self._uri(path), self._inner(path)
        if self._is_absent:
            hint = "It is made by the first save to it: check its name, or save first"
            raise ObjectNotFoundError("There is no such repository on the Hub yet", uri=uri, hint=hint)
        if not inner:
            raise ObjectNotFoundError("This is a repository, not a file", uri=uri, hint="Name a file in it")
        cached = cached_file(self._place, self._commit(), inner)
        if cached is not None:
            return ObjectInfo(path, uri, os.path.getsize(cached), self._commit())
        probe = self._probe(path)
        with self._guard:
            self._probes[path] = probe
        return ObjectInfo(path, uri, probe.size_bytes, self._commit())

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files of one folder of the commit with their sizes."""
        if self._is_absent:
            return []
        commit, folder = self._commit(), self._inner(prefix)
        if is_offline():
            sizes = cached_files(self._place, commit, folder)
        else:
            sizes = ((file.name, file.size_bytes) for file in self._hub.files(commit, folder, self._uri(prefix)))
        files = sorted((f"{prefix.rstrip('/')}/{name}", size) for name, size in sizes)
        return [ObjectInfo(path, self._uri(path), size, commit) for path, size in files]

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the first files and folders in a folder of the commit; offline, return none."""
        if is_offline():
            return []
        return self._hub.names(self._commit(), self._inner(prefix), self._uri(prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder of the commit; raises as `find`."""
        commit, folder = self._commit(), self._inner(prefix)
        if is_offline():
            return cached_folders(self._place, commit, folder)
        return self._hub.folders(commit, folder, self._uri(prefix))

    def source(self, info: ObjectInfo) -> Source:
        """Return the file in the cache, or its place from the Hub; `HttpSource.refresh` requests the place again."""
        self._pin(info.version)
        cached = cached_file(self._place, self._commit(), self._inner(info.path))
        if cached is not None and os.path.getsize(cached) == info.size_bytes:
            return FileSource(cached)
        with self._guard:
            probe = self._probes.pop(info.path, None)  # used once, because its redirect expires
        return self._source(info, probe or self._probe(info.path))

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Return the SHA-256 that names the file in LFS or Xet, from the cache or by one listing of its folder."""
        inner = self._inner(info.path)
        cached = cached_file(self._place, self._commit(), inner)
        sha256 = cached_sha256(cached) if cached is not None else None
        if sha256 is None and not is_offline():
            sha256 = self._listed_sha256(inner)
        if sha256 is None or info.size_bytes is None:
            return NoDigest("it is not in LFS or Xet, and the Hub has a sha256 only for files there")
        return ObjectDigest("sha256", (PartDigest(info.size_bytes, sha256),))

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of the Hub's URL, and of the token if the Hub is not Hugging Face's own."""
        start = self._hub.start(info.version or self._commit(), self._inner(info.path))
        has_one_owner = urlsplit(start.url).hostname == _PUBLIC_HUB  # there, a name has the same bytes for everybody
        return digest_of("hf", start.url, {} if has_one_owner else start.headers)

    def prepare(self) -> None:
        """Look at the branch; see `CommittingStore.prepare`. A repository that is not there is made later."""
        from streamer.backends.hf.commit import is_absent  # noqa: PLC0415 (a load needs none of it)

        self._is_absent = is_absent(self._hub, self._place, self._options, self._commit)

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> HubUpload:
        """Begin one file of the next commit; see `UploadingStore.begin_upload`."""
        from streamer.backends.hf.upload import HubUpload  # noqa: PLC0415 (a load needs none of it)

        del part_bytes, replaced  # the commit is made on top of the one that was looked at
        return HubUpload(self._next_commit(), self._inner(path), self._uri(path), size_bytes)

    def remove(self, path: str) -> None:
        """Remove one file with the next commit; see `UploadingStore.remove`."""
        self._next_commit().remove(self._inner(path))

    def commit(self) -> None:
        """Make one commit of all changes; see `CommittingStore.commit`."""
        if self._writes is None:
            return
        commit = self._writes.make()
        with self._guard:
            self._writes, self._pinned_commit = None, commit
            self._probes.clear()
            self._digests.clear()

    def close(self) -> None:
        """Do nothing: connections are shared."""

    def _next_commit(self) -> HubCommit:
        from streamer.backends.hf.commit import HubCommit, make_repository  # noqa: PLC0415 (a load needs none of it)

        with self._writing:
            if self._writes is None:
                if self._is_absent:
                    make_repository(self._hub, self._place, is_private=self._options.get("private") is not False)
                    self._is_absent = False
                self._writes = HubCommit(self._hub, self._place, self._commit(), self._uri(self.root))
            return self._writes

    def _source(self, info: ObjectInfo, probe: Probe) -> Source:
        if probe.size_bytes != info.size_bytes:
            sizes = f"{probe.size_bytes} bytes, and lists {info.size_bytes}"
            raise ChangedError(f"The Hub sends a file of {sizes}", uri=info.uri, hint="Load again")
        return source_of_probe(
            probe,
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
            raise RangeResponseError("The server no longer answers byte ranges", uri=info.uri, hint="Load again")
        return source

    def _listed_sha256(self, inner: str) -> str | None:
        folder = inner.rpartition("/")[0]
        with self._guard:  # all shards of a folder wait for one listing
            if folder not in self._digests:
                files = self._hub.files(self._pinned_commit or "", folder, self._uri(self._place.prefix))
                self._digests[folder] = {file.name: file.sha256 for file in files}
            return self._digests[folder].get(inner.rpartition("/")[2])

    def _probe(self, path: str) -> Probe:
        if is_offline():
            raise _absent_offline("file", self._uri(path))
        return self._hub.probe(self._commit(), self._inner(path), self._uri(path))

    def _commit(self) -> str:
        with self._guard:
            if self._pinned_commit is None:
                self._pinned_commit = self._resolved_commit()
            return self._pinned_commit

    def _pin(self, commit: str | None) -> None:
        """Take the commit of a description that another process got, unless this store has resolved its revision."""
        with self._guard:
            self._pinned_commit = self._pinned_commit or commit

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
