"""Writes one object to S3: a small one by one PUT, a larger one by a multipart upload.

Guarantees: readers see either no new object or the whole object, after `S3Upload.finish`. An object that another writer
uploaded meanwhile is not overwritten. A lost answer does no harm, because an object holds the mark of its upload. Parts
are sent straight from their memory, each with a CRC32C that S3 compares. If an S3-compatible server does not confirm
the CRC32C over plain HTTP, the parts are sent with signed content.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from hashlib import md5
from typing import Any

from streamer import _native
from streamer.backends.s3.checksums import digest_in_head
from streamer.backends.s3.object_writer import CONDITION_FAILED, UNKNOWN, ObjectWriter
from streamer.core.errors import AccessDeniedError, StorageError
from streamer.core.outages.transient import is_transient
from streamer.core.store.digests import is_of_bytes
from streamer.core.store.own_objects import FoundObject, ProvenUpload
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import MOST_PARALLEL_PARTS, changed_meanwhile

MOST_BYTES_AT_ONCE = 1 << 20  # held until `finish`; a multipart upload costs two requests more
TAG_NUMBER = 10_000  # the highest number of a part; no object has so many parts (`streamer._save.parts`)
MOST_UPLOADS = 20  # of one object that are looked at; each costs a request
MARK = "streamer-upload"  # a name of user-defined metadata


class S3Upload(ProvenUpload):
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = MOST_PARALLEL_PARTS
    needs_equal_parts = True

    def __init__(
        self,
        writer: ObjectWriter,
        size_bytes: int,
        part_bytes: int,
        replaced: ObjectInfo | None,
        *,
        resumes: bool = False,
        joins: tuple[str, bool, bool, Any] | None = None,
    ) -> None:
        super().__init__(writer.uri, replaced)
        self._writer, self._call, self._part_bytes = writer, writer.call, part_bytes
        self._lock = threading.Lock()
        self._parts: dict[int, dict[str, Any]] = {}
        self._sizes: dict[int, int] = {}  # of the parts, by number
        self._body: memoryview | None = None
        self._upload_id: str | None = None
        self._has_checksums = self._confirms = False
        self._earlier: dict[int, dict[str, Any]] | None = None  # parts that an earlier process sent, by number
        if joins is not None:
            self._upload_id, self._has_checksums, self._confirms, earlier = joins
            self._earlier = None if earlier is None else dict(earlier)
        # What replaces an object is sent in parts, which can be looked at before they become the object.
        elif size_bytes > MOST_BYTES_AT_ONCE or (size_bytes and replaced is not None):
            tag = self._tag(size_bytes) if resumes else b""
            self._upload_id = (self._resumed(tag) if tag else None) or self._begin(tag)

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part; raises as `Upload.send`."""
        self.note_sent(offset_bytes, part)
        if self._upload_id is None:
            self._body = part
            return
        number = offset_bytes // self._part_bytes + 1
        checksum = {"ChecksumCRC32C": _crc32c(part)} if self._has_checksums else {}
        earlier = (self._earlier or {}).get(number)
        if earlier is not None and _is_same(earlier, part):
            etag = str(earlier["ETag"])
        else:
            etag = self._send(number, part, checksum)
        with self._lock:
            self._parts[number] = {"PartNumber": number, "ETag": etag, **checksum}
            self._sizes[number] = part.nbytes

    def share(self) -> Any:
        """Return the id of the upload, whether its parts have checksums, and earlier parts; None without any."""
        if self._upload_id is None:
            return None
        facts = ("ETag", "Size", "ChecksumCRC32C")
        earlier = [(at, {key: part[key] for key in facts if key in part}) for at, part in (self._earlier or {}).items()]
        return self._upload_id, self._has_checksums, self._confirms, None if self._earlier is None else earlier

    def sent(self) -> Any:
        """Return the parts, and their sizes."""
        return self.sent_bytes, list(self._parts.values()), list(self._sizes.items())

    def add(self, sent: Any) -> None:
        """Add the parts of another process."""
        sent_bytes, parts, sizes = sent
        self.sent_bytes = max(self.sent_bytes, sent_bytes)
        self._parts |= {each["PartNumber"]: each for each in parts}
        self._sizes |= dict(sizes)

    def _send(self, number: int, part: memoryview, checksum: Mapping[str, str]) -> str:
        """Send one part, and return its ETag."""
        of_part: dict[str, Any] = {"PartNumber": number, "UploadId": self._upload_id}
        try:
            is_checked = self._confirms  # another thread may change it meanwhile
            answer = self._call("upload_part", is_checked=is_checked, Body=part, **checksum, **of_part)
            # A part whose checksum the answer does not confirm counts only over TLS: TCP alone may miss a flipped bit.
            is_confirmed = answer.get("ChecksumCRC32C") == checksum.get("ChecksumCRC32C")
            if is_checked and not is_confirmed and not self._writer.is_encrypted():
                self._confirms = False
                answer = self._call("upload_part", Body=part, **checksum, **of_part)
        except StorageError as error:
            if error.code != "NoSuchUpload":
                raise
            if not self._is_from_before(self._look()):  # another program that resumes the same upload has finished it
                raise changed_meanwhile(self._uri, self._replaced, status=404) from error
            what = "S3 no longer has this upload: it was removed before it was complete"
            hint = "Save again, and check the bucket's lifecycle rules and the programs that clean it up"
            raise StorageError(what, uri=self._uri, hint=hint, status=404, code=error.code) from error
        etag = str(answer.get("ETag") or "")
        if not etag:
            what = "the answer to a part is not that of S3: it has no ETag"
            raise StorageError(what, uri=self._uri, hint="Check endpoint_url, and the proxies on the way to it")
        return etag

    def _commit(self) -> str | None:
        condition = {"IfNoneMatch": "*"} if self._replaced is None else {"IfMatch": self._replaced.version}
        try:
            return self._complete(condition if self._replaced is None or self._replaced.version else {})
        except StorageError as error:
            if error.code in UNKNOWN:  # a server without conditional writes, which S3 has since 2024
                self._check_unchanged()
                return self._complete({})
            # S3 may answer 409 although nobody else writes: the caller then sends the request again.
            if is_transient(error) or error.code == "NoSuchBucket":
                raise
            if error.code in CONDITION_FAILED or error.status in (404, 409, 412):
                raise changed_meanwhile(self._uri, self._replaced, status=error.status) from error
            raise

    def _check_parts(self) -> None:
        if self._upload_id is None:
            return
        try:
            there = self._writer.parts_of(self._upload_id)
        except StorageError as error:
            if _is_unavailable(error):
                return
            raise
        for number, size_bytes in self._sizes.items():
            found = there.get(number, {}).get("Size")
            if found is not None and found != size_bytes:
                what = f"the storage has {found} of the {size_bytes} bytes of part {number} of the object"
                raise self._fault_of(what)

    def _look(self) -> FoundObject | None:
        head = self._writer.head()
        if head is None:
            return None
        size_bytes = head.get("ContentLength")
        mark = head.get("Metadata", {}).get(MARK)
        return FoundObject(size_bytes, head.get("ETag"), mark, self._is_equal(head, size_bytes or 0))

    def _is_equal(self, head: Mapping[str, Any], size_bytes: int) -> bool | None:
        """Compare the checksum that S3 keeps with the bytes that were sent; None if there is none that we know."""
        if self._upload_id is None:
            return is_of_bytes(digest_in_head(head, size_bytes), self._body or memoryview(b""))
        parts = [each.get("ChecksumCRC32C") for _, each in sorted(self._parts.items())]
        value, is_of_parts, count = str(head.get("ChecksumCRC32C") or "").partition("-")
        if not is_of_parts or not all(parts) or count != str(len(parts)):
            return None
        return value == _crc32c(memoryview(b"".join(base64.b64decode(str(each)) for each in parts)))

    def _is_own(self, found: FoundObject) -> bool:
        if self._earlier is None:
            return super()._is_own(found)
        # The mark is that of an earlier process, which this one does not know.
        return found.version is not None and found.version in (self.version, self._etag_of_parts())

    def _remove(self, found: FoundObject) -> None:
        self._writer.remove(found.version)

    def _discard(self) -> None:
        if self._upload_id is not None:
            try:
                self._call("abort_multipart_upload", UploadId=self._upload_id)
            except StorageError as error:
                if error.status != 404:
                    raise

    def _tag(self, size_bytes: int) -> bytes:
        """Return what tells uploads apart, with all that S3 fixed when one began; empty if it cannot be told."""
        settings = self._writer.settings_identity()
        text = f"streamer: {size_bytes} bytes in parts of {self._part_bytes}{settings and f', {settings}'}"
        return b"" if settings is None else text.encode()

    def _resumed(self, tag: bytes) -> str | None:
        """Return the id of an upload that an earlier process has left, and note its parts.

        No request tells whose upload it is, so ours have a part with a tag, which does not become a part of the object.
        """
        if not self._writer.takes_checksums():
            return None
        try:
            for upload_id in self._writer.unfinished_uploads()[:MOST_UPLOADS]:
                tags = self._writer.parts_of(upload_id, after=TAG_NUMBER - 1)
                if TAG_NUMBER in tags and _is_same(tags[TAG_NUMBER], memoryview(tag)):
                    self._earlier, self._has_checksums, self._confirms = self._writer.parts_of(upload_id), True, True
                    return upload_id
        except StorageError as error:
            if not _is_unavailable(error):
                raise
        return None

    def _etag_of_parts(self) -> str | None:
        """Return the ETag of an object of the parts that were sent; None if the server has other ETags."""
        etags = [str(part["ETag"]).strip('"') for _, part in sorted(self._parts.items())]
        try:
            joined = md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest()
        except ValueError:
            return None
        return f'"{joined}-{len(etags)}"'

    def _begin(self, tag: bytes) -> str:
        """Begin a multipart upload. Its parts have checksums if the server supports them."""
        answer: Mapping[str, Any] = {}
        if self._writer.takes_checksums():
            try:
                answer = self._call("create_multipart_upload", Metadata={MARK: self.mark}, ChecksumAlgorithm="CRC32C")
            except StorageError as error:
                if error.code not in UNKNOWN:
                    raise
            else:
                self._has_checksums = self._confirms = True
        if not self._has_checksums:
            answer = self._call("create_multipart_upload", Metadata={MARK: self.mark})
        self._upload_id = str(answer.get("UploadId") or "")
        if not self._upload_id:
            what = "the answer to the beginning of an upload is not that of S3: it has no id"
            raise StorageError(what, uri=self._uri, hint="Check endpoint_url, and the proxies on the way to it")
        if tag:
            part = memoryview(tag)
            self._send(TAG_NUMBER, part, {"ChecksumCRC32C": _crc32c(part)} if self._has_checksums else {})
        return self._upload_id

    def _complete(self, condition: Mapping[str, Any]) -> str | None:
        """Send the last request; return the ETag of the object, if the answer has one."""
        if self._upload_id is None:
            body = bytes(self._body or b"")
            return self._call("put_object", Body=body, Metadata={MARK: self.mark}, **condition).get("ETag")
        of_upload = {"UploadId": self._upload_id, **condition}
        parts = [part for _, part in sorted(self._parts.items())]
        return self._call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **of_upload).get("ETag")

    def _check_unchanged(self) -> None:
        head = self._writer.head()
        if (head and head.get("ETag")) != (self._replaced and self._replaced.version):
            raise changed_meanwhile(self._uri, self._replaced)


def _is_same(earlier: Mapping[str, Any], part: memoryview) -> bool:
    """Say whether a part that S3 has equals this one, by CRC32C, or by MD5 if the server lists no CRC32C."""
    if earlier.get("Size") != part.nbytes:
        return False
    if "ChecksumCRC32C" in earlier:
        return bool(earlier["ChecksumCRC32C"] == _crc32c(part))
    return bool(str(earlier.get("ETag")).strip('"') == md5(part, usedforsecurity=False).hexdigest())


def _is_unavailable(error: StorageError) -> bool:
    """Say whether the rights for a request are missing, or the server lacks the request."""
    return isinstance(error, AccessDeniedError) or error.code in UNKNOWN or error.status in (404, 405)


def _crc32c(part: memoryview) -> str:
    return base64.b64encode(_native.crc("crc32c", part).to_bytes(4, "big")).decode()
