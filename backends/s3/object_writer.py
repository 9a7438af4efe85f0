"""Sends requests to S3 that change or describe one object, and makes errors of this package of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from streamer.backends.s3.answers import raise_translated
from streamer.backends.s3.client import S3Client
from streamer.backends.s3.urls import split_path
from streamer.core.errors import AccessDeniedError, CredentialsError, StorageError, StreamerError

# Codes of errors: the condition of a request does not hold; the server does not have the request, or its options.
CONDITION_FAILED = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload", "412", "409"})
UNKNOWN = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest", "501"})

_RIGHTS = "Grant s3:PutObject and s3:AbortMultipartUpload, and s3:DeleteObject to replace what is there"

Answer = TypeVar("Answer")


class ObjectWriter:
    """Sends requests that change one object."""

    def __init__(
        self, client: S3Client, path: str, uri: str, translated: Callable[[Exception, str, str], StreamerError]
    ) -> None:
        self._client, self._translated, self.uri = client, translated, uri
        self._bucket, self._key = split_path(path)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a request about the object; see `S3Client.call`."""
        return self._asked(lambda: self._client.call(method, self._bucket, Key=self._key, **parameters))

    def unfinished_uploads(self) -> list[str]:
        """Return the ids of the object's multipart uploads that have not ended, the latest first; raises as `call`."""
        page = self._asked(lambda: self._client.call("list_multipart_uploads", self._bucket, Prefix=self._key))
        uploads = [each for each in page.get("Uploads", []) if each["Key"] == self._key]
        return [str(each["UploadId"]) for each in sorted(uploads, key=lambda each: each["Initiated"], reverse=True)]

    def parts_of(self, upload_id: str, after: int = 0) -> dict[int, dict[str, Any]]:
        """Describe the parts of a multipart upload with numbers above `after`, by number; raises as `call`."""
        parts: dict[int, dict[str, Any]] = {}
        marker = after
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
                if error.code in CONDITION_FAILED or error.status in (404, 409, 412):
                    return  # another program has replaced or removed it
                if error.code not in UNKNOWN and not isinstance(error, AccessDeniedError):
                    raise
            else:
                return
        self.call("delete_object")

    def takes_checksums(self) -> bool:
        """Say whether the options allow checksums that S3 does not require."""
        return self._client.takes_checksums()

    def settings_identity(self) -> str | None:
        """See `S3Client.settings_identity`."""
        return self._client.settings_identity()

    def is_encrypted(self) -> bool:
        """Say whether requests go over TLS."""
        return self._client.is_encrypted(self._bucket)

    def head(self) -> dict[str, Any] | None:
        """Describe the object as ``head_object`` does, with its checksum if we may see it; None if there is none."""
        try:
            return self.call("head_object", **({"ChecksumMode": "ENABLED"} if self.takes_checksums() else {}))
        except AccessDeniedError:  # the checksum of an encrypted object needs another right
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
            raise_translated(translated, error)
