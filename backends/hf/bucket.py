"""Buckets of the Hugging Face Hub: ``hf://buckets/owner/name[/path]``.

A bucket has no commits. Guarantees: the version of a file is its Xet hash, as the Hub lists it. Before a file is read,
the hash is looked up again after the place of its bytes, so that both are of one version; the engine then compares the
ETag of each block. huggingface_hub's own file system writes files, one by one, through a temporary file and Xet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from streamer.backends.hf.cache import is_offline
from streamer.backends.hf.client import HubClient, refuse_ignored
from streamer.backends.hf.paths import parse_bucket
from streamer.backends.http.probe import Probe
from streamer.backends.http.store import source_of_probe
from streamer.core.errors import ChangedError, ObjectNotFoundError, RangeResponseError, UsageError
from streamer.core.options.limits import Limits
from streamer.core.secrets.redact import redact
from streamer.core.store.identities import digest_of
from streamer.core.store.sources import HttpSource, ObjectInfo, Source
from streamer.core.store.uploads import Upload


class BucketStore:
    """The files of one bucket, each named ``buckets/owner/name/path``."""

    root: str  # `uri` without its scheme
    server: str  # the Hub's endpoint

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> None:
        self._place, self._written_uri, self._options = parse_bucket(uri), uri, storage_options
        self.root = self._place.root
        self._hub = HubClient(self._place, storage_options, limits)
        self.server = self._hub.endpoint
        self._writer: Any = None
        if is_offline():
            hint = "Unset it: the cache of the Hub keeps no files of buckets"
            raise UsageError("HF_HUB_OFFLINE=1 forbids requests to the Hub", uri=redact(uri), hint=hint)

    def info(self, path: str) -> ObjectInfo:
        """Return size and hash of one file, from a listing of what begins with its name."""
        inner, uri = self._inner(path), self._uri(path)
        folder, _, name = inner.rpartition("/")
        for file in self._hub.files("", folder, uri, prefix=inner) if name else ():
            if file.name == name:
                return ObjectInfo(path, uri, file.size_bytes, file.hash)
        raise ObjectNotFoundError("The bucket has no such file", uri=uri, hint="Check the name")

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the files of one folder with their sizes and hashes."""
        folder = prefix.rstrip("/")
        listed = self._hub.files("", self._inner(prefix), self._uri(prefix))
        files = sorted((f"{folder}/{file.name}", file) for file in listed)
        return [ObjectInfo(path, self._uri(path), file.size_bytes, file.hash) for path, file in files]

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the first files and folders in a folder."""
        return self._hub.names("", self._inner(prefix), self._uri(prefix))

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder; raises as `find`."""
        return self._hub.folders("", self._inner(prefix), self._uri(prefix))

    def source(self, info: ObjectInfo) -> Source:
        """Return the place of a file; `HttpSource.refresh` requests it again."""
        probe = self._hub.probe("", self._inner(info.path), info.uri)
        self._check(info, probe)
        return source_of_probe(
            probe,
            self._hub.client,
            self._hub.start("", self._inner(info.path)),
            info,
            partial(self._refreshed, info),
            ca_file=self._hub.access.ca_file,
            proxy=self._hub.access.proxy,
        )

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of the Hub's URL and the token, as buckets may be private."""
        start = self._hub.start("", self._inner(info.path))
        return digest_of("hf", start.url, start.headers)

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write a file; see `UploadingStore.begin_upload`."""
        upload: Upload = self._through_fsspec().begin_upload(path, size_bytes, part_bytes, replaced)
        return upload

    def remove(self, path: str) -> None:
        """Remove one file; see `UploadingStore.remove`."""
        self._through_fsspec().remove(path)

    def close(self) -> None:
        """Close the file system that writes, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _through_fsspec(self) -> Any:
        from streamer.backends.fsspec.store import streamer_open_store  # noqa: PLC0415 (a load needs none of it)

        refuse_ignored(self._options)
        if self._writer is None:
            options = {"endpoint": self._hub.endpoint, "token": self._hub.token or False}
            self._writer = streamer_open_store("hf", self._written_uri, options)
        return self._writer

    def _check(self, info: ObjectInfo, probe: Probe) -> None:
        """Refuse a place of the bytes of another version."""
        now = self.info(info.path)
        if probe.size_bytes != info.size_bytes or now != info:
            raise ChangedError("The file was replaced meanwhile", uri=info.uri, hint="Load again")

    def _refreshed(self, info: ObjectInfo) -> HttpSource:
        source = self.source(info)
        if not isinstance(source, HttpSource):
            raise RangeResponseError("The server no longer answers byte ranges", uri=info.uri, hint="Load again")
        return source

    def _inner(self, path: str) -> str:
        return path[len(self._place.prefix) :].strip("/")

    def _uri(self, path: str) -> str:
        return redact(f"hf://{path}")
