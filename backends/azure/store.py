"""Blobs in Azure Storage: lists, describes, writes and removes them; the native reactors read.

Guarantees: every answer is requested from Azure, never taken from a listing cache; a listing is complete, without the
empty blobs that stand for folders in a hierarchical namespace; a blob's ETag is pinned from the first answer on. An
account key never leaves this process: it signs a URL that reads one blob for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamer.backends.azure.answers import Blob, blob_of, page_of
from streamer.backends.azure.client import AzureClient
from streamer.backends.azure.errors import malformed_answer
from streamer.backends.azure.urls import parse_url
from streamer.backends.blob_urls import is_blob_url
from streamer.backends.client.answer_values import folder_in_bucket, is_directly_in, is_plain, parse_name
from streamer.backends.client.first_byte import size_by_first_byte
from streamer.core.errors import ObjectNotFoundError, StorageError
from streamer.core.options.limits import Limits, ListingCount
from streamer.core.outages.outage_waits import answered_so_far
from streamer.core.store.digests import HASHES, NoDigest, ObjectDigest, PartDigest
from streamer.core.store.identities import digest_of
from streamer.core.store.presence import folders_among
from streamer.core.store.sources import AnswerChecksum, HttpSource, ObjectInfo, Store, hookimpl
from streamer.core.store.uploads import SharedUpload, Upload

if TYPE_CHECKING:
    from streamer.backends.azure.upload import AzureUpload

DEFAULT_LIMITS = Limits()
LIST_PAGE_BLOBS = 5000  # Azure's own limit

# Azure computes this checksum of the bytes that it sends, since service version 2019-02-02, for ranges up to 4 MiB.
# https://learn.microsoft.com/rest/api/storageservices/get-blob
CRC64 = AnswerChecksum(
    request_header=("x-ms-range-get-content-crc64", "true"),
    answer_header="x-ms-content-crc64",
    algorithm="crc64nvme",
    byte_order="little",
    max_bytes=4 << 20,
)


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the container of `uri` with the options of `adlfs.AzureBlobFileSystem`."""
    is_ours = scheme in ("az", "abfs", "abfss") or (scheme == "https" and is_blob_url(uri))
    return AzureStore(uri, storage_options, limits) if is_ours else None


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: Azure's blobs are read over HTTP."""
    return HttpSource


class AzureStore:
    """The blobs of one container, each named ``container/name``."""

    root: str  # ``container/name`` of `uri`, without SAS
    server: str  # the account's endpoint

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._url = parse_url(uri)
        self._limits = limits
        self.root = f"{self._url.container}/{self._url.name}".rstrip("/")
        self._client = AzureClient(self._url, storage_options, limits)
        self.server = self._client.endpoint

    def info(self, path: str) -> ObjectInfo:
        """Request size and ETag with one HEAD. If Azure refuses it, a header of the answer holds the reason."""
        name = path.partition("/")[2]
        uri = self._url.uri_of(name)
        if not name:
            raise ObjectNotFoundError("This is a container, not a blob", uri=uri, hint="Name a blob in it")

        blob = blob_of(self._client.ask("HEAD", path, uri), name, uri)
        if _is_folder(blob):
            raise ObjectNotFoundError("This is a folder, not a blob", uri=uri, hint="Name a blob in it")
        return self._described(path, uri, blob)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the blobs of one folder with their sizes and ETags, five thousand per request."""
        container, folder = folder_in_bucket(prefix)
        uri = self._url.uri_of(folder)
        entries = [entry for page in self._pages(container, folder, uri) for entry in page]
        files = [entry for entry in entries if not _is_folder(entry)]
        blobs = [blob for blob in files if is_directly_in(folder, parse_name(blob.name, uri), uri)]
        infos = [_info(f"{container}/{blob.name}", self._url.uri_of(blob.name), blob) for blob in blobs]
        return sorted(infos, key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the blobs and folders of the first page of a folder's listing."""
        container, folder = folder_in_bucket(prefix)
        entries, _ = self._page(container, folder, None)
        names = {each.name.removeprefix(folder) for each in entries}
        return sorted(name for name in names if name and f"{name}/" not in names)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder; raises as `find`."""
        container, folder = folder_in_bucket(prefix)
        pages = self._pages(container, folder, self._url.uri_of(folder))
        return folders_among(entry.name.removeprefix(folder) for page in pages for entry in page)

    def source(self, info: ObjectInfo) -> HttpSource:
        """Return a URL and headers that read one blob; `HttpSource.refresh` renews them."""
        grant = self._client.grant(info.path, info.uri)
        return HttpSource(
            url=grant.url,
            headers=grant.headers,
            version=info.version,
            expires_at_s=grant.expires_at_s,
            refresh=partial(self.source, info) if grant.may_be_renewed else None,
            ca_file=self._client.ca_file,
            proxy=self._client.proxy(grant.url),
            answer_checksum=CRC64,
        )

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Request the Content-MD5 of the blob by one HEAD; the blob has one only if its uploader stored it."""
        blob = blob_of(self._client.ask("HEAD", info.path, info.uri), info.path.partition("/")[2], info.uri)
        if self._described(info.path, info.uri, blob) != info:
            return NoDigest("it was replaced meanwhile")  # reading this blob fails, too
        if blob.kind not in (None, "BlockBlob"):
            return NoDigest("its Content-MD5 may be outdated: appended blocks and written pages do not change it")
        value = blob.md5
        if len(value) != HASHES["md5"]:
            return NoDigest("it was uploaded without a Content-MD5, and Azure computes none for several blocks")
        return ObjectDigest("md5", (PartDigest(info.size_bytes or 0, value.hex()),))

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of account, container and name, and of the login if the host is not Azure's own."""
        login = self._client.login_identity()
        return login and digest_of("az", self.server, info.path, login)

    def write(self, path: str, data: bytes) -> None:
        """Upload one small blob."""
        uri = self._url.uri_of(path.partition("/")[2])
        self._client.ask("PUT", path, uri, headers={"x-ms-blob-type": "BlockBlob"}, body=data)

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin the upload of a blob; raises as `Upload.send` with its first block."""
        return self._upload(path, size_bytes, part_bytes, replaced)

    def resume_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin the upload of a blob; Azure may have blocks of it already. Raises as `Upload.send`."""
        upload = self._upload(path, size_bytes, part_bytes, replaced)
        upload.note_earlier_blocks()
        return upload

    def join_upload(self, path: str, part_bytes: int, shared: Any) -> SharedUpload:
        """Send blocks of a blob that another process has begun."""
        return self._upload(path, 0, part_bytes, None, joins=shared)

    def remove(self, path: str) -> None:
        """Remove one blob; raises as `write`."""
        with suppress(ObjectNotFoundError):
            self._client.ask("DELETE", path, self._url.uri_of(path.partition("/")[2]))

    def _upload(
        self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None, *, joins: Any = None
    ) -> AzureUpload:
        from streamer.backends.azure.upload import AzureUpload  # noqa: PLC0415 (a load needs none)

        uri = self._url.uri_of(path.partition("/")[2])
        return AzureUpload(self._client, path, uri, size_bytes, part_bytes=part_bytes, replaced=replaced, joins=joins)

    def close(self) -> None:
        """Do nothing: connections are shared, and closed after the last source that may need them."""

    def _described(self, path: str, uri: str, blob: Blob) -> ObjectInfo:
        """Describe a blob by the answer to a HEAD; request the first byte, too, unless the answer has its length."""
        found = _info(path, uri, blob)
        encoding = blob.encoding
        if found.size_bytes is not None and is_plain({"Content-Encoding": encoding}):
            return found
        return replace(found, size_bytes=size_by_first_byte(self.source(found), self._client.times, uri))

    def _pages(self, container: str, folder: str, uri: str) -> Iterator[list[Blob]]:
        """Request page after page; each page has its own attempts and its own time."""
        count, answered = ListingCount(self._limits, uri), answered_so_far()
        seen: set[str | None] = set()
        marker: str | None = None
        while marker not in seen:
            seen.add(marker)
            entries, marker = answered.once(self._page, container, folder, marker)
            count.add(len(entries))
            yield entries
            if not marker:
                return
        raise StorageError("Azure lists the same page again", uri=uri, hint="Check account_host")

    def _page(self, container: str, folder: str, marker: str | None) -> tuple[list[Blob], str | None]:
        query = {"restype": "container", "comp": "list", "delimiter": "/", "include": "metadata"}
        query |= {"maxresults": str(LIST_PAGE_BLOBS), "prefix": folder, "marker": marker or ""}
        uri = self._url.uri_of(folder)
        answer = self._client.ask("GET", container, uri, {name: value for name, value in query.items() if value})
        page = page_of(answer.body, uri)
        if page is None:
            raise malformed_answer(answer, uri)
        return page


def _info(path: str, uri: str, blob: Blob) -> ObjectInfo:
    etag = blob.etag or None
    version = etag if etag is None or etag.endswith('"') else f'"{etag}"'  # a listing has it without its quotes
    return ObjectInfo(path, uri, size_bytes=blob.size, version=version)


def _is_folder(blob: Blob) -> bool:
    """Say whether an empty blob stands for a folder: a hierarchical namespace and consoles write such blobs."""
    return str(blob.metadata.get("hdi_isfolder")).lower() == "true" or blob.name.endswith("/")
