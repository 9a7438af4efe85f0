"""Objects in S3 and in servers with its protocol; the native reactors read.

Guarantees: every answer is requested from S3, never taken from a listing cache. A ``?versionId=`` in the URL pins that
version. One SigV4-signed URL serves every range of an object, because the signature does not cover the range. A listing
that S3 leaves incomplete is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.answer_values import (
    FOREIGN,
    described,
    folder_in_bucket,
    is_directly_in,
    is_plain,
    is_text,
    parse_size,
    refuse_version_of_folder,
)
from streamer.backends.s3.answers import (
    ListedObject,
    count_of_entries,
    names_in,
    objects_in,
    raise_translated,
)
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.urls import parse_url, split_path
from streamer.core.errors import (
    AccessDeniedError,
    CredentialsError,
    ObjectNotFoundError,
    StorageError,
    StreamerError,
    UsageError,
)
from streamer.core.options.limits import Limits, ListingCount
from streamer.core.outages.outage_waits import answered_so_far
from streamer.core.outages.transient import STATUSES
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import HttpSource, ObjectInfo, Store, hookimpl

if TYPE_CHECKING:
    from streamer.backends.s3.object_writer import ObjectWriter
    from streamer.core.store.digests import NoDigest, ObjectDigest
    from streamer.core.store.uploads import SharedUpload, Upload

# botocore renews temporary credentials 10 minutes before they expire, so they stay valid as long as the signature.
SIGNATURE_LIFETIME_S = 600
MAX_PARTS = 10_000  # S3's own limit of a multipart upload
DEFAULT_LIMITS = Limits()
NULL_VERSION = "null"
PAGE_ENTRIES = 1000  # of a full page: without a mark of the end, more may follow
UNPIN = "Leave ?versionId= out, or name an object"


@hookimpl
def streamer_open_store(scheme: str, uri: str, storage_options: Mapping[str, Any], limits: Limits) -> Store | None:
    """Open the bucket of `uri` with the options of `s3fs.S3FileSystem`."""
    return S3Store(uri, storage_options, limits) if scheme in ("s3", "s3a") else None


@hookimpl
def streamer_source_kind() -> type[HttpSource]:
    """Return the kind of source: these objects are read over HTTP."""
    return HttpSource


class S3Store:
    """The objects of one bucket, each named ``bucket/key``."""

    root: str  # ``bucket/key`` of `uri`, without version
    server: str  # the endpoint, or the bucket if the endpoint is Amazon's own

    def __init__(self, uri: str, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._scheme, self.root, self._pinned_version = parse_url(uri)
        self._client = S3Client(storage_options, limits)
        self.server = self._client.endpoint or f"s3://{self.root.partition('/')[0]}"

    def info(self, path: str) -> ObjectInfo:
        """Request size and ETag by one HEAD; after a refusal, request the reason by one GET of one byte."""
        bucket, key = split_path(path)
        uri = self._uri(path)
        if not key:
            raise ObjectNotFoundError("This is a bucket, not an object", uri=uri, hint="Name an object in it")
        target = {"Key": key, **self._version_of(path)}
        answer = self._head(bucket, target, uri)
        _check_version(target.get("VersionId"), answer.get("VersionId"), uri)
        return self._described(path, uri, answer)

    def find(self, prefix: str) -> list[ObjectInfo]:
        """List the objects of one folder with their sizes and ETags, a thousand per request."""
        bucket, folder = folder_in_bucket(prefix)
        uri = self._uri(f"{bucket}/{folder}")
        objects = [each for page in self._pages(bucket, folder, uri) for each in objects_in(page, uri)]
        infos = [self._info_of(bucket, each) for each in objects if is_directly_in(folder, each.key, uri)]
        refuse_version_of_folder(infos, self._version_of(prefix), self._uri(prefix), UNPIN)
        return sorted(infos, key=lambda info: info.path)

    def peek(self, prefix: str) -> list[str]:
        """Return the names of the objects and folders of the first page of a folder's listing."""
        bucket, folder = folder_in_bucket(prefix)
        return names_in(next(self._pages(bucket, folder, self._uri(f"{bucket}/{folder}"))), folder)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the sub-folders of a folder; raises as `find`."""
        from streamer.core.store.presence import folders_among  # noqa: PLC0415 (few loads look for folders)

        bucket, folder = folder_in_bucket(prefix)
        pages = self._pages(bucket, folder, self._uri(f"{bucket}/{folder}"))
        names = folders_among(name for page in pages for name in names_in(page, folder))
        refuse_version_of_folder(names, self._version_of(prefix), self._uri(prefix), UNPIN)
        return names

    def source(self, info: ObjectInfo) -> HttpSource:
        """Sign a GET of the object; `HttpSource.refresh` signs again, with the credentials that are current then."""
        bucket, key = split_path(info.path)
        signed_at_s = time.time()
        try:
            source = self._client.get_source(bucket, SIGNATURE_LIFETIME_S, Key=key, **self._version_of(info.path))
        except Exception as error:
            self._raise(error, info.uri, bucket)
        if self._client.is_anonymous:
            return replace(source, version=info.version)
        renewed, expires_at_s = partial(self._renewed, info, signed_at_s), signed_at_s + SIGNATURE_LIFETIME_S
        return replace(source, version=info.version, expires_at_s=expires_at_s, refresh=renewed)

    def identity(self, info: ObjectInfo) -> str:
        """Return a digest of endpoint, name and version, and of the login if the endpoint is not Amazon's own."""
        from streamer.core.store.identities import digest_of  # noqa: PLC0415 (a plain load compares none)

        try:
            login = self._client.login_identity()
        except Exception as error:
            self._raise(error, info.uri, info.path.partition("/")[0])
        return login and digest_of("s3", info.path, self._version_of(info.path), login)

    def digest(self, info: ObjectInfo) -> ObjectDigest | NoDigest:
        """Request the object's checksum by one HEAD; if only its parts have checksums, request the parts' checksums."""
        from streamer.backends.s3.checksums import (  # noqa: PLC0415 (a plain load verifies nothing)
            Composite,
            digest_in_head,
            digest_of_parts,
        )
        from streamer.core.store.digests import NoDigest  # noqa: PLC0415

        bucket, key = split_path(info.path)
        target = {"Key": key, **self._version_of(info.path)}
        answer = self._head(bucket, target, info.uri, ChecksumMode="ENABLED")
        found, size_bytes = self._described(info.path, info.uri, answer), info.size_bytes
        if size_bytes is None or (found.version, found.size_bytes) != (info.version, size_bytes):
            return NoDigest("it was replaced meanwhile")  # reading this object fails, too
        digest = digest_in_head(answer, size_bytes)
        if not isinstance(digest, Composite):
            return digest
        try:
            return digest_of_parts(digest, self._parts(bucket, target), size_bytes)
        except Exception as error:  # few servers support this request, and some policies forbid it; reading still works
            why = _error_code(error) or type(error).__name__
            return NoDigest(f"its checksum is of its parts, whose sizes the storage does not report ({why})")

    def write(self, path: str, data: bytes) -> None:
        """Upload one small object."""
        self._writer(path).call("put_object", Body=data)

    def begin_upload(
        self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None, *, resumes: bool = False
    ) -> Upload:
        """Begin the upload of an object; unless the object is small, it is a multipart upload."""
        from streamer.backends.s3.upload import S3Upload  # noqa: PLC0415 (a load needs none)

        if self._pinned_version:
            raise UsageError("A version of an object cannot be written", uri=self._uri(path), hint=UNPIN)
        return S3Upload(self._writer(path), size_bytes, part_bytes, replaced, resumes=resumes)

    def resume_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin the upload of an object, or continue its latest multipart upload; raises as `begin_upload`."""
        return self.begin_upload(path, size_bytes, part_bytes, replaced, resumes=True)

    def join_upload(self, path: str, part_bytes: int, shared: Any) -> SharedUpload:
        """Send parts of a multipart upload that another process has begun."""
        from streamer.backends.s3.upload import S3Upload  # noqa: PLC0415 (a load needs none)

        return S3Upload(self._writer(path), 0, part_bytes, None, joins=tuple(shared))

    def remove(self, path: str) -> None:
        """Remove one object; raises as `write`."""
        self._writer(path).call("delete_object")

    def close(self) -> None:
        """Do nothing: connections are shared, and closed after the last source that may need them."""

    def _writer(self, path: str) -> ObjectWriter:
        from streamer.backends.s3.object_writer import ObjectWriter  # noqa: PLC0415 (a load needs none)

        return ObjectWriter(self._client, path, self._uri(path), self._storage_error)

    def _renewed(self, info: ObjectInfo, signed_at_s: float) -> HttpSource:
        """Sign again. If a signature is refused early, its time or its place in the URL may be wrong."""
        if time.time() < signed_at_s + SIGNATURE_LIFETIME_S / 2:
            with suppress(StreamerError):  # the date of any answer corrects the time
                self.info(info.path)
                self._client.sign_headers()
        self._client.renew()
        try:
            return self.source(info)
        except CredentialsError as error:  # there were keys before: their file may be written anew at this moment
            error.may_come = True
            raise

    def _storage_error(self, error: Exception, uri: str, bucket: str) -> StreamerError:
        from streamer.backends.s3.errors import storage_error  # noqa: PLC0415 (imports botocore)

        found = storage_error(error, uri, bucket)
        if self._client.has_unused_keys and isinstance(found, AccessDeniedError):
            found.hint = "storage_options has a key, and anon=True, so the key is not used: leave anon out"
        return found

    def _raise(self, error: Exception, uri: str, bucket: str) -> NoReturn:
        raise_translated(self._storage_error(error, uri, bucket), error)

    def _uri(self, path: str) -> str:
        version = "".join(f"?versionId={value}" for value in self._version_of(path).values())
        return redact(f"{self._scheme}://{path}{version}")

    def _version_of(self, path: str) -> dict[str, str]:
        return {"VersionId": self._pinned_version} if self._pinned_version and path == self.root else {}

    def _described(self, path: str, uri: str, answer: Mapping[str, Any]) -> ObjectInfo:
        """Describe an object by the answer to a HEAD; request the first byte, too, unless the answer has its length."""
        length, unsized = answer.get("ContentLength"), ObjectInfo(path, uri, None, answer.get("ETag") or None)
        if unsized.version is None and _is_foreign(answer):
            stated = {"content-type": answer.get("ContentType") or "", "content-length": str(length)}
            what = f"The answer does not describe an object of S3: {described(stated)}"
            raise StorageError(what, uri=uri, status=200, hint=f"{FOREIGN}: check endpoint_url")
        if length is None or not is_plain({"Content-Encoding": answer.get("ContentEncoding") or ""}):
            from streamer.backends.client.first_byte import size_by_first_byte  # noqa: PLC0415 (servers tell it)

            length = size_by_first_byte(self.source(unsized), answer_times(self._limits), uri)
        return replace(unsized, size_bytes=parse_size(length, uri))

    def _info_of(self, bucket: str, listed: ListedObject) -> ObjectInfo:
        path = f"{bucket}/{listed.key}"
        return ObjectInfo(path, self._uri(path), listed.size_bytes, listed.etag)

    def _pages(self, bucket: str, folder: str, uri: str) -> Iterator[dict[str, Any]]:
        count, answered = ListingCount(self._limits, uri), answered_so_far()
        seen: set[str] = set()
        following: str | None = None
        while True:
            page = answered.once(self._page, bucket, folder, following)
            count.add(count_of_entries(page))
            yield page
            following = page.get("NextContinuationToken")
            has_end = "IsTruncated" in page or count_of_entries(page) < PAGE_ENTRIES  # some servers omit or misspell it
            if has_end and not page.get("IsTruncated") and not following:
                return
            if not following or following in seen:
                raise StorageError("S3 broke off its listing", uri=uri, hint="Check endpoint_url")
            seen.add(following)

    def _page(self, bucket: str, folder: str, token: str | None) -> dict[str, Any]:
        named: dict[str, Any] = {"ContinuationToken": token} if token else {}
        try:
            return self._client.call("list_objects_v2", bucket, Prefix=folder, Delimiter="/", **named)
        except Exception as error:
            self._raise(error, self._uri(f"{bucket}/{folder}"), bucket)

    def _parts(self, bucket: str, target: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        marker = count = 0
        while count < MAX_PARTS:
            answer = self._client.call("get_object_attributes", bucket, PartsAfter=marker, **target)
            page = answer.get("ObjectParts") or {}
            parts = page.get("Parts") or []
            count += len(parts)
            yield from parts
            following = page.get("NextPartNumberMarker")
            if not parts or not page.get("IsTruncated") or not following or following <= marker:
                return
            marker = following

    def _head(self, bucket: str, target: Mapping[str, Any], uri: str, **more: Any) -> Mapping[str, Any]:
        """Send a HEAD; after a refusal, request the reason, and send it again if there is none any more."""
        try:
            return self._client.call("head_object", bucket, **target, **more)
        except Exception as error:
            reason = self._reason(error, bucket, target)
            if reason is None:  # a refusal of the GET may have named the region of the bucket, which no HEAD does
                try:
                    return self._client.call("head_object", bucket, **target, **more)
                except Exception as again:
                    reason = again
            self._raise(reason, uri, bucket)

    def _reason(self, error: Exception, bucket: str, target: Mapping[str, Any]) -> Exception | None:
        """Request the reason for a refused HEAD by a GET, whose answer has a body; None if the GET is not refused."""
        status = (getattr(error, "response", None) or {}).get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status is None or status in STATUSES or _error_code(error) is not None:
            return error
        try:
            self._client.call("get_object", bucket, Range="bytes=0-0", **target)
        except Exception as reason:
            return error if _error_code(reason) in (None, "InvalidRange") else reason
        return None


def _is_foreign(answer: Mapping[str, Any]) -> bool:
    """Say whether an answer without an ETag is that of a proxy: S3 has one for every object, some servers have none."""
    return answer.get("ContentLength") == 0 or is_text(answer.get("ContentType") or "")


def _check_version(pinned: str | None, answered: str | None, uri: str) -> None:
    """Check that the answer is of the pinned version: some servers ignore a version in a bucket that keeps none.

    An object that was put while the bucket kept no versions has the version ``null``. Servers send this name or none.
    """
    if pinned is None or answered == pinned or (pinned == NULL_VERSION and not answered):
        return
    what = f"with version {quoted(answered)}" if answered else "without a version"
    raise ObjectNotFoundError(
        f"The server ignores ?versionId=, and answers {what}", uri=uri, hint="Check the version, or leave it out"
    )


def _error_code(error: Exception) -> str | None:
    from streamer.backends.s3.errors import error_code  # noqa: PLC0415 (as above)

    return error_code(error)
