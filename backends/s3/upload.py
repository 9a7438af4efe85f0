"""Writes one object to S3: a small one by one PUT, a larger one by a multipart upload.

Guarantees: readers see either no new object or the whole object, after `S3Upload.finish`. An object that another writer
uploaded meanwhile is not overwritten. A lost answer does no harm, because an object holds the mark of its upload. Parts
are sent straight from their memory by signed URLs, each with a CRC32C that S3 compares. If an S3-compatible server does
not confirm the CRC32C, botocore sends the parts, and over plain HTTP it signs their content.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Any, TypeVar

from streamer import _native
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.urls import split_path
from streamer.core.errors import AccessDeniedError, CredentialsError, StorageError, StreamerError
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import UploadMark, changed_meanwhile

__all__ = ["ObjectWriter", "S3Upload"]

MOST_BYTES_AT_ONCE = 1 << 20  # held until `finish`; a multipart upload costs two requests more
PARALLEL_PARTS = 16
MARK = "streamer-upload"  # a name of user-defined metadata

_RIGHTS = "Grant s3:PutObject and s3:AbortMultipartUpload, and s3:DeleteObject to replace what is there"
_CONDITION_FAILED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload", "412", "409"})
_DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch"})  # damaged on the way, so the part is sent again
_UNKNOWN = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest", "501"})

Answer = TypeVar("Answer")


class ObjectWriter:
    """Sends requests that change one object.

    Args:
        client: The client of the store.
        path: The store's own path of the object.
        uri: The URL of the object, without secrets.
        translated: Makes an exception of the client an error of this package.
    """

    def __init__(
        self, client: S3Client, path: str, uri: str, translated: Callable[[Exception, str, str], StreamerError]
    ) -> None:
        self._client, self._translated, self.uri = client, translated, uri
        self._bucket, self._key = split_path(path)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of botocore's client about the object.

        Raises:
            AccessDeniedError: the credentials do not allow it.
            StorageError: any other error of S3, the network or TLS.
        """
        return self._asked(lambda: self._client.call(method, self._bucket, Key=self._key, **parameters))

    def put_part(self, part: memoryview, crc32c: str, **parameters: Any) -> Mapping[str, str]:
        """Send one part, and return the headers of the answer; raises as `call`."""
        return self._asked(lambda: self._client.put_part(self._bucket, part, crc32c, Key=self._key, **parameters))

    def latest_upload(self) -> str | None:
        """Return the id of the latest multipart upload of the object that has not ended; raises as `call`."""
        page = self._asked(lambda: self._client.call("list_multipart_uploads", self._bucket, Prefix=self._key))
        uploads = [each for each in page.get("Uploads", []) if each["Key"] == self._key]
        return str(max(uploads, key=lambda each: each["Initiated"])["UploadId"]) if uploads else None

    def parts_of(self, upload_id: str) -> dict[int, dict[str, Any]]:
        """Describe the parts that a multipart upload has, by number; raises as `call`."""
        parts: dict[int, dict[str, Any]] = {}
        marker = 0
        while True:
            page = self.call("list_parts", UploadId=upload_id, PartNumberMarker=marker)
            parts |= {each["PartNumber"]: each for each in page.get("Parts", [])}
            following = page.get("NextPartNumberMarker")
            if not page.get("IsTruncated") or not following or following <= marker:
                return parts
            marker = following

    def remove(self, etag: str | None) -> None:
        """Remove the object if it has this ETag; a server without such conditions removes any. Raises as `call`."""
        if etag:
            try:
                self.call("delete_object", IfMatch=etag)
            except StorageError as error:
                if error.code in _CONDITION_FAILED or error.status in (404, 409, 412):
                    return  # another program has replaced or removed it
                if error.code not in _UNKNOWN and not isinstance(error, AccessDeniedError):
                    raise
            else:
                return
        self.call("delete_object")

    def takes_checksums(self) -> bool:
        """Say whether the options allow checksums that S3 does not require."""
        return self._client.takes_checksums()

    def is_encrypted(self) -> bool:
        """Say whether requests go over TLS."""
        return not (self._client.endpoint or "https").startswith("http:")

    def head(self) -> dict[str, Any] | None:
        """Describe the object as ``head_object`` does; None if there is none."""
        try:
            return self.call("head_object")
        except StorageError as error:
            if error.status == 404:
                return None
            raise

    def _asked(self, request: Callable[[], Answer]) -> Answer:
        try:
            return request()
        except Exception as error:
            translated = self._translated(error, self.uri, self._bucket)
            if isinstance(translated, AccessDeniedError) and not isinstance(translated, CredentialsError):
                translated.hint = _RIGHTS
            raise translated from error


class S3Upload:
    """See `streamer.core.store.uploads.Upload`.

    Args:
        writer: Sends the requests about the object.
        size_bytes: Size of the object, or None.
        part_bytes: Size of each part except the last.
        replaced: The object to replace, or None.
        resumes: Whether to continue the latest multipart upload of the object, if an earlier process has left one.

    Raises:
        AccessDeniedError: the credentials do not allow writing.
        StorageError: the bucket does not exist, and other failures.
    """

    parallel_parts = PARALLEL_PARTS
    needs_equal_parts = True

    def __init__(
        self,
        writer: ObjectWriter,
        size_bytes: int | None,
        part_bytes: int,
        replaced: ObjectInfo | None,
        *,
        resumes: bool = False,
    ) -> None:
        self._writer, self._call, self._uri = writer, writer.call, writer.uri
        self._part_bytes, self._replaced = part_bytes, replaced
        self._mark = UploadMark(MARK, replaced, lambda: (writer.head() or {}).get("Metadata", {}))
        self._lock = threading.Lock()
        self._parts: dict[int, dict[str, Any]] = {}
        self._body: memoryview | None = None
        self._upload_id: str | None = None
        self._has_checksums = self._confirms = False
        self._earlier: dict[int, dict[str, Any]] | None = None  # parts that an earlier process sent, by number
        self._etag: str | None = None  # of the finished object, if S3 said it
        if size_bytes is None or size_bytes > MOST_BYTES_AT_ONCE:
            self._upload_id = (self._resumed() if resumes else None) or self._begin()

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part; raises as `Upload.send`."""
        if self._upload_id is None:
            self._body = part
            return
        number = offset_bytes // self._part_bytes + 1
        of_part: dict[str, Any] = {"PartNumber": number, "UploadId": self._upload_id}
        checksum = {"ChecksumCRC32C": _crc32c(part)} if self._has_checksums else {}
        earlier = (self._earlier or {}).get(number)
        if earlier is not None and _is_same(earlier, part, checksum["ChecksumCRC32C"]):
            self._note(number, earlier["ETag"], checksum)
            return
        try:
            sent = self._send_signed(part, of_part, checksum["ChecksumCRC32C"]) if self._confirms else None
            if sent is None:
                sent = self._call("upload_part", Body=bytes(part), **checksum, **of_part)["ETag"]
        except StorageError as error:
            if error.code != "NoSuchUpload":
                raise
            # Another program that resumes the same upload has finished it, or removed it.
            raise changed_meanwhile(self._uri, self._replaced, status=404) from error
        self._note(number, sent, checksum)

    def finish(self) -> None:
        """Make the object of its parts; raises as `Upload.finish`."""
        self._mark.note_last_request()
        condition = {"IfNoneMatch": "*"} if self._replaced is None else {"IfMatch": self._replaced.version}
        try:
            self._complete(condition if self._replaced is None or self._replaced.version else {})
        except StorageError as error:
            if error.code in _UNKNOWN:  # a server without conditional writes, which S3 has since 2024
                self._check_unchanged()
                self._complete({})
            elif error.code in _CONDITION_FAILED or error.status in (404, 409, 412):
                if not (self._mark.is_there() or self._is_made_of_parts()):
                    raise changed_meanwhile(self._uri, self._replaced) from error
            else:
                raise

    def abort(self) -> None:
        """Remove the parts, and the object if it was made but the answer was lost; raises as `Upload.abort`."""
        if self._upload_id is not None:
            try:
                self._call("abort_multipart_upload", UploadId=self._upload_id)
            except StorageError as error:
                if error.status != 404:
                    raise
        if self._mark.is_to_be_removed():
            self.withdraw()

    def confirm(self) -> None:
        """Check the object's mark by one HEAD; raises as `OwningUpload.confirm`."""
        if not self._is_own(self._writer.head()):
            raise changed_meanwhile(self._uri, self._replaced)

    def withdraw(self) -> None:
        """Remove the object if it has the mark of this upload; raises as `OwningUpload.withdraw`."""
        head = self._writer.head()
        if self._is_own(head):
            self._writer.remove((head or {}).get("ETag"))

    def _is_own(self, head: Mapping[str, Any] | None) -> bool:
        """Say whether this upload made the object: by its mark, or by its ETag if the mark is of an earlier process."""
        if head is None:
            return False
        mark = head.get("Metadata", {}).get(MARK)
        if mark is not None and self._earlier is None:
            return bool(mark == self._mark.metadata[MARK])
        return self._etag is None or head.get("ETag") == self._etag

    def _note(self, number: int, etag: str, checksum: Mapping[str, str]) -> None:
        with self._lock:
            self._parts[number] = {"PartNumber": number, "ETag": etag, **checksum}

    def _resumed(self) -> str | None:
        """Return the id of an upload that an earlier process has left, and note its parts."""
        if not self._writer.takes_checksums():
            return None
        try:
            upload_id = self._writer.latest_upload()
            earlier = self._writer.parts_of(upload_id) if upload_id else {}
        except StorageError as error:  # the rights are missing, or the server lacks these requests
            if isinstance(error, AccessDeniedError) or error.code in _UNKNOWN or error.status == 404:
                return None
            raise
        if upload_id is not None:
            self._earlier, self._has_checksums, self._confirms = earlier, True, True
        return upload_id

    def _is_made_of_parts(self) -> bool:
        """Say whether the object consists of the parts of a resumed upload, whose mark this process does not know."""
        if self._earlier is None:
            return False
        etags = [part["ETag"].strip('"') for _, part in sorted(self._parts.items())]
        try:
            joined = md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest()
        except ValueError:
            return False
        self._etag = f'"{joined}-{len(etags)}"'
        return (self._writer.head() or {}).get("ETag") == self._etag

    def _begin(self) -> str:
        """Begin a multipart upload. Its parts have checksums if the server supports them."""
        if self._writer.takes_checksums():
            try:
                answer = self._call("create_multipart_upload", Metadata=self._mark.metadata, ChecksumAlgorithm="CRC32C")
            except StorageError as error:
                if error.code not in _UNKNOWN:
                    raise
            else:
                self._has_checksums = self._confirms = True
                return str(answer["UploadId"])
        return str(self._call("create_multipart_upload", Metadata=self._mark.metadata)["UploadId"])

    def _send_signed(self, part: memoryview, of_part: Mapping[str, Any], checksum: str) -> str | None:
        """Send one part by a signed URL and return its ETag; None if plain HTTP did not confirm its checksum."""
        try:
            answer = self._writer.put_part(part, checksum, **of_part)
        except StorageError as error:
            if error.code not in _DAMAGED:
                raise
            answer = self._writer.put_part(part, checksum, **of_part)
        # A part whose checksum the answer does not confirm counts only over TLS: TCP alone may miss a flipped bit.
        if answer.get("x-amz-checksum-crc32c") != checksum and not self._writer.is_encrypted():
            self._confirms = False
            return None
        return answer.get("etag", "")

    def _complete(self, condition: Mapping[str, Any]) -> None:
        if self._upload_id is None:
            body = bytes(self._body or b"")
            self._etag = self._call("put_object", Body=body, Metadata=self._mark.metadata, **condition).get("ETag")
            return
        of_upload = {"UploadId": self._upload_id, **condition}
        parts = [part for _, part in sorted(self._parts.items())]
        self._etag = self._call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **of_upload).get("ETag")

    def _check_unchanged(self) -> None:
        head = self._writer.head()
        if (head and head.get("ETag")) != (self._replaced and self._replaced.version):
            raise changed_meanwhile(self._uri, self._replaced)


def _is_same(earlier: Mapping[str, Any], part: memoryview, crc32c: str) -> bool:
    """Say whether a part that S3 has equals this one, by CRC32C, or by MD5 if the server lists no CRC32C."""
    if earlier.get("Size") != part.nbytes:
        return False
    if "ChecksumCRC32C" in earlier:
        return bool(earlier["ChecksumCRC32C"] == crc32c)
    return bool(earlier["ETag"].strip('"') == md5(part, usedforsecurity=False).hexdigest())


def _crc32c(part: memoryview) -> str:
    return base64.b64encode(_native.crc("crc32c", part).to_bytes(4, "big")).decode()
