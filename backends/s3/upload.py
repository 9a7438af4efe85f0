"""Writes one object to S3: a small one by one PUT, a larger one by a multipart upload.

Guarantees: the object shows up whole, in `S3Upload.finish`, and only if none is there, or the one that is to be
replaced. An answer that was lost on the way does no harm: an object holds the mark of the upload that wrote it.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from streamer.backends.s3.client import S3Client
from streamer.backends.s3.urls import split_path
from streamer.core.errors import AccessDeniedError, CredentialsError, StorageError, StreamerError
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile

__all__ = ["ObjectWriter", "S3Upload"]

MOST_BYTES_AT_ONCE = 1 << 20  # held until `finish`; a multipart upload costs two requests more
PARALLEL_PARTS = 16
MARK = "streamer-upload"  # a name of user-defined metadata

_RIGHTS = "Grant s3:PutObject and s3:AbortMultipartUpload, and s3:DeleteObject to replace what is there"
_CONDITION_FAILED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload", "412", "409"})
_NO_CONDITIONS = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest", "501"})


class ObjectWriter:
    """Sends requests that change one object.

    Args:
        client: Of the store.
        path: The store's own of the object.
        uri: Of the object, without secrets.
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
        try:
            return self._client.call(method, self._bucket, Key=self._key, **parameters)
        except Exception as error:
            translated = self._translated(error, self.uri, self._bucket)
            if isinstance(translated, AccessDeniedError) and not isinstance(translated, CredentialsError):
                translated.hint = _RIGHTS
            raise translated from error


class S3Upload:
    """See `streamer.core.store.uploads.Upload`.

    Args:
        writer: Of the object.
        size_bytes: Of the object.
        part_bytes: Of each part but the last.
        replaced: What is to be replaced, or None.

    Raises:
        AccessDeniedError: the credentials do not allow writing.
        StorageError: the bucket does not exist, and other failures.
    """

    parallel_parts = PARALLEL_PARTS
    needs_equal_parts = True

    def __init__(self, writer: ObjectWriter, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> None:
        self._call, self._uri = writer.call, writer.uri
        self._part_bytes, self._replaced = part_bytes, replaced
        self._mark = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._parts: dict[int, str] = {}  # number to ETag
        self._body: memoryview | None = None
        self._may_be_there = False
        self._upload_id: str | None = None
        if size_bytes > MOST_BYTES_AT_ONCE:
            answer = self._call("create_multipart_upload", Metadata={MARK: self._mark})
            self._upload_id = answer["UploadId"]

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part; raises as `Upload.send`."""
        if self._upload_id is None:
            self._body = part
            return
        number = offset_bytes // self._part_bytes + 1
        answer = self._call("upload_part", PartNumber=number, UploadId=self._upload_id, Body=bytes(part))
        with self._lock:
            self._parts[number] = answer["ETag"]

    def finish(self) -> None:
        """Put the object together; raises as `Upload.finish`."""
        self._may_be_there = True
        condition = {"IfNoneMatch": "*"} if self._replaced is None else {"IfMatch": self._replaced.version}
        try:
            self._complete(condition if self._replaced is None or self._replaced.version else {})
        except StorageError as error:
            if error.code in _NO_CONDITIONS:  # a server with the protocol of before 2024
                self._check_unchanged()
                self._complete({})
            elif error.code in _CONDITION_FAILED or error.status in (404, 409, 412):
                if not self._is_ours():
                    raise changed_meanwhile(self._uri, self._replaced) from error
            else:
                raise

    def abort(self) -> None:
        """Give the parts back, and remove an object whose answer was lost; raises as `Upload.abort`."""
        if self._upload_id is not None:
            try:
                self._call("abort_multipart_upload", UploadId=self._upload_id)
            except StorageError as error:
                if error.status != 404:
                    raise
        if self._may_be_there and self._replaced is None and self._is_ours():
            self._call("delete_object")

    def _complete(self, condition: Mapping[str, Any]) -> None:
        if self._upload_id is None:
            body = bytes(self._body or b"")
            self._call("put_object", Body=body, Metadata={MARK: self._mark}, **condition)
            return
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._parts.items())]
        self._call("complete_multipart_upload", UploadId=self._upload_id, MultipartUpload={"Parts": parts}, **condition)

    def _is_ours(self) -> bool:
        head = self._head()
        return head is not None and head.get("Metadata", {}).get(MARK) == self._mark

    def _check_unchanged(self) -> None:
        head = self._head()
        if (head and head.get("ETag")) != (self._replaced and self._replaced.version):
            raise changed_meanwhile(self._uri, self._replaced)

    def _head(self) -> dict[str, Any] | None:
        try:
            return self._call("head_object")
        except StorageError as error:
            if error.status == 404:
                return None
            raise
