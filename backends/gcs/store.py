"""Objects in Google Cloud Storage; google-auth finds credentials, the JSON API lists, the native reactors read.

Guarantees: every answer is requested from Google, never taken from a listing cache. Every object is read in the
generation of its listing, or in the generation that ``#1234`` or ``?generation=1234`` in the URL pins. A listing that
Google leaves incomplete is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from streamer.backends.client.answer_values import folder_in_bucket, is_directly_in, refuse_version_of_folder
from streamer.backends.gcs.client import GcsClient, names_in, object_in, page_in
from streamer.backends.gcs.credentials import Bearer
from streamer.backends.gcs.errors import Answer, missing_bucket, not_found, raise_storage_error, refusal
from streamer.core.errors import ObjectNotFoundError, StorageError, StreamerError, UsageError
from streamer.core.options.limits import Limits, ListingCount
from streamer.core.outages.outage_waits import answered_so_far
from streamer.core.secrets.redact import redact
from streamer.core.store.digests import NoDigest, ObjectDigest, digest_of_base64
from streamer.core.store.identities import digest_of
from streamer.core.store.presence import folders_among
from streamer.core.store.sources import HttpSource, ObjectInfo, PythonSource, Source, Store, hookimpl
from streamer.core.store.uploads import SharedUpload, Upload

if TYPE_CHECKING:
    from streamer.backends.gcs.upload import ObjectWriter

# GCS sends this header with every range. If an emulator does not, only the condition in the URL pins the generation.
VERSION_HEADER = "x-goog-generation"

DEFAULT_LIMITS = Limits()
UNPIN = "A # and a number at the end name a generation: leave them out, or add a slash if the folder has this name"
_PINNED = re.compile(r"(.+)(?:#|\?generation=)(\d+)")


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the bucket of `uri` with the options of `gcsfs.GCSFileSystem`."""
    return GcsStore(uri, storage_options, limits) if scheme in ("gs", "gcs") else None


@hookimpl
def streamer_source_kind(scheme: str) -> type[Source] | None:
    """Return the kind of source: objects are read over HTTP."""
    return HttpSource if scheme in ("gs", "gcs") else None


class GcsStore:
    """The objects of one bucket, each named ``bucket/key``."""

    root: str  # ``bucket/key`` of `uri`, without generation
    server: str  # the endpoint

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._scheme, _, path = uri.partition("://")
        pinned = _PINNED.fullmatch(path)
        self._pinned_generation = pinned[2] if pinned else None
        self.root = (pinned[1] if pinned else path).rstrip("/")
        _check_bucket(self.root.partition("/")[0], uri)
        try:
            self._client = GcsClient(storage_options, limits)
        except StreamerError:
            raise
        except Exception as error:
            raise_storage_error(error, self._uri(self.root))
        self.server = self._client.endpoint

    def info(self, path: str) -> ObjectInfo:
        """Request size and generation, and after a 404 whether the bucket exists."""
        bucket, _, key = path.partition("/")
        uri = self._uri(path)
        if not key:
            raise ObjectNotFoundError("This is a bucket, not an object", uri=uri, hint="Name an object in it")
        generation = self._generation_of(path)
        answer = self._get(uri, bucket, key, generation=generation, fields="name,size,generation")
        if answer.status == 404:
            raise self._absence(answer, bucket, uri, generation)
        return self._info_of(self._document(answer, uri), bucket, uri)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the objects of one folder with their sizes and generations, a thousand per request."""
        bucket, folder = folder_in_bucket(prefix)
        uri = self._uri(f"{bucket}/{folder}")
        listed = (
            self._info_of(entry, bucket, uri)
            for page in self._pages(bucket, folder)
            for entry in page_in(page, uri)[0]
            # Consoles make empty objects with such names to stand for folders.
            if not (isinstance(entry, dict) and str(entry.get("name")).endswith("/"))
        )
        infos = [info for info in listed if is_directly_in(folder, info.path[len(bucket) + 1 :], uri)]
        refuse_version_of_folder(infos, self._generation_of(prefix), self._uri(prefix), UNPIN)
        return sorted(infos, key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the objects and folders of the first page of a folder's listing."""
        bucket, folder = folder_in_bucket(prefix)
        uri = self._uri(f"{bucket}/{folder}")
        answer = self._get(uri, bucket, prefix=folder or None, delimiter="/", fields="items(name),prefixes")
        return names_in(self._document(answer, uri), folder)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder; raises as `find`."""
        bucket, folder = folder_in_bucket(prefix)
        names = folders_among(name for page in self._pages(bucket, folder) for name in names_in(page, folder))
        refuse_version_of_folder(names, self._generation_of(prefix), self._uri(prefix), UNPIN)
        return names

    def source(self, info: ObjectInfo) -> HttpSource | PythonSource:
        """Return the object's media URL with the current credentials; `HttpSource.refresh` renews them.

        If the engine cannot use the options of the session, Python reads with the session.
        """
        only = self._client.only_python
        if only is None:
            return self._source(info, refused=None)
        from streamer.backends.gcs.session import RangeReader  # noqa: PLC0415  imports aiohttp

        reader = RangeReader(partial(self._client.read, self._media_url(info)), self._client.caller, info)
        return PythonSource(reader.read_into, remark=f"only gcsfs's session supports {only}: read in Python")

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Request the CRC32C of the object's generation, which every object has."""
        bucket, _, key = info.path.partition("/")
        answer = self._get(info.uri, bucket, key, generation=info.version, fields="crc32c,generation")
        if answer.status == 404:
            return NoDigest("it was replaced meanwhile")  # reading this object fails, too
        text = self._document(answer, info.uri).get("crc32c")
        return (
            digest_of_base64("crc32c", str(text), info.size_bytes or 0)
            if text
            else NoDigest("the answer of GCS has no crc32c")
        )

    def write(self, path: str, data: bytes) -> None:
        """Upload one small object."""
        self._writer(path).put(data)

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of endpoint, name and generation, and of the login if the endpoint is not Google's own."""
        login = self._client.login_identity()
        return login and digest_of("gs", self.server, info.path, self._generation_of(info.path), login)

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin a resumable upload; raises as `write`, and UsageError for a URL that pins a generation."""
        from streamer.backends.gcs.upload import GcsUpload  # noqa: PLC0415 (a load needs none)

        del part_bytes  # the upload has its own chunks, in any multiple of 256 KiB
        if self._pinned_generation:
            raise UsageError("A generation of an object cannot be written", uri=self._uri(path), hint=UNPIN)
        return GcsUpload(self._writer(path), size_bytes, replaced)

    def join_upload(self, path: str, part_bytes: int, shared: Any) -> SharedUpload:
        """Send all parts of an object whose session another process has begun."""
        from streamer.backends.gcs.upload import GcsUpload  # noqa: PLC0415 (a load needs none)

        del part_bytes
        session, size_bytes = shared
        return GcsUpload(self._writer(path), size_bytes, None, joins=session)

    def remove(self, path: str) -> None:
        """Remove one object; raises as `write`."""
        self._writer(path).remove()

    def close(self) -> None:
        """Do nothing: connections are shared, and closed after the last source that may need them."""

    def _writer(self, path: str) -> ObjectWriter:
        from streamer.backends.gcs.upload import ObjectWriter  # noqa: PLC0415 (a load needs none)

        return ObjectWriter(self._client, path, self._uri(path))

    def _source(self, info: ObjectInfo, refused: str | None) -> HttpSource:
        bearer = self._bearer(info.uri, refused)
        return self._client.target(
            self._media_url(info),
            bearer,
            version_header=VERSION_HEADER,
            expires_at_s=bearer.expires_at_s,
            refresh=None if bearer.token is None else partial(self._source, info, bearer.token),
        )

    def _media_url(self, info: ObjectInfo) -> str:
        bucket, _, key = info.path.partition("/")
        generation = self._generation_of(info.path)
        condition = None if generation else info.version
        return self._client.media_url(bucket, key, generation=generation, ifGenerationMatch=condition)

    def _bearer(self, uri: str, refused: str | None) -> Bearer:
        try:
            return self._client.bearer(refused)
        except Exception as error:
            raise_storage_error(error, uri)

    def _get(self, uri: str, bucket: str, key: str | None = None, **parameters: str | None) -> Answer:
        try:
            return self._client.get(bucket, key, **parameters)
        except Exception as error:
            raise_storage_error(error, uri)

    def _document(self, answer: Answer, uri: str) -> Mapping[str, Any]:
        if answer.status == 200 and answer.document is not None:
            return answer.document
        self._client.forget_absent_credentials()
        raise refusal(answer, self._client.caller, uri)

    def _pages(self, bucket: str, folder: str) -> Iterator[Mapping[str, Any]]:
        uri = self._uri(f"{bucket}/{folder}")
        count, answered = ListingCount(self._limits, uri), answered_so_far()
        seen: set[str | None] = set()
        token: str | None = None
        while token not in seen:
            seen.add(token)
            page = answered.once(self._page, bucket, folder, token)
            entries, token = page_in(page, uri)
            count.add(len(entries) + len(page.get("prefixes", [])))
            yield page
            if not token:
                return
        raise StorageError("Google Cloud Storage lists the same page again", uri=uri, hint="Check endpoint_url")

    def _page(self, bucket: str, folder: str, token: str | None) -> Mapping[str, Any]:
        uri, fields = self._uri(f"{bucket}/{folder}"), "items(name,size,generation),prefixes,nextPageToken"
        answer = self._get(uri, bucket, prefix=folder or None, delimiter="/", pageToken=token, fields=fields)
        if answer.status == 404:
            raise missing_bucket(answer, bucket, uri)
        return self._document(answer, uri)

    def _absence(self, answer: Answer, bucket: str, uri: str, generation: str | None) -> StorageError:
        """Return the error for a missing object or bucket: the answer about the object is 404 in both cases."""
        if self._get(uri, bucket, maxResults="1", fields="nextPageToken").status == 404:
            return missing_bucket(answer, bucket, uri)
        what = "object of this name and generation" if generation else "object of this name"
        return not_found(answer, f"There is no {what} in the bucket", uri, None)

    def _info_of(self, entry: object, bucket: str, uri: str) -> ObjectInfo:
        described = object_in(entry, uri)
        path = f"{bucket}/{described.name}"
        return ObjectInfo(path, self._uri(path), described.size_bytes, described.generation)

    def _generation_of(self, path: str) -> str | None:
        return self._pinned_generation if path == self.root else None

    def _uri(self, path: str) -> str:
        generation = self._generation_of(path)
        return redact(f"{self._scheme}://{path}") + (f"#{generation}" if generation else "")


def _check_bucket(bucket: str, uri: str) -> None:
    if not bucket:
        raise UsageError("The URL names no bucket", uri=redact(uri), hint="Expected gs://bucket/key")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            "A GCS URL holds no credentials", uri=redact(uri), hint="Give storage_options={'token': '/path/key.json'}"
        )
