"""Writes one object to Google Cloud Storage by a resumable upload, chunk after chunk.

Guarantees: readers see either no new object or the whole object, after `GcsUpload.finish`. An object that another
writer uploaded meanwhile is not overwritten. Google's CRC32C of the whole object is compared with the CRC32C of the
bytes that were sent.
https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from time import sleep
from typing import Any
from urllib.parse import parse_qs, urlsplit

from streamer import _native
from streamer.backends.client.answer_values import parse_size
from streamer.backends.client.retry import PAUSE_S
from streamer.backends.gcs.client import GcsClient
from streamer.backends.gcs.errors import Answer, missing_bucket, raise_storage_error, refusal
from streamer.core.errors import AccessDeniedError, CredentialsError, StorageError
from streamer.core.store.own_objects import FoundObject, ProvenUpload
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile

CHUNK_MULTIPLE_BYTES = 256 << 10  # Google's rule for every chunk except the last
MARK = "streamer-upload"
SERVICE = "upload/storage/v1"
INCOMPLETE, CANCELLED = 308, 499
GONE = (404, 410)  # of a session
MOST_IDLE = 4  # attempts in a row after which Google has no more bytes than before
_RIGHTS = "Grant roles/storage.objectUser: storage.objects.create, and storage.objects.delete to replace"
_RECEIVED = re.compile(r"bytes=0-(\d{1,20})")


class ObjectWriter:
    """Sends requests that change one object, and makes errors of their answers."""

    def __init__(self, client: GcsClient, path: str, uri: str) -> None:
        self._client, self.uri = client, uri
        self._bucket, _, self.key = path.partition("/")

    def put(self, data: bytes) -> None:
        """Upload the whole object; raises as `GcsUpload`."""
        answer = self.upload("POST", {"uploadType": "media", "name": self.key}, data, {})
        if answer.status != 200:
            raise self.refused(answer)

    def remove(self, generation: str | None = None) -> None:
        """Remove the object, or only this generation of it; raises as `GcsUpload`."""
        condition = {"ifGenerationMatch": generation} if generation else {}
        answer = self._ask(lambda: self._client.change("DELETE", "storage/v1", self._bucket, self.key, condition))
        if answer.status not in (200, 204, 404, *([412] if generation else [])):
            raise self.refused(answer)

    def upload(
        self, method: str, query: Mapping[str, str], data: bytes | memoryview, headers: Mapping[str, str]
    ) -> Answer:
        """Send a request of an upload; an answer of any status is returned."""
        return self._ask(
            lambda: self._client.change(method, SERVICE, self._bucket, None, query, data=data, headers=headers)
        )

    def found(self) -> Mapping[str, Any] | None:
        """Request size, generation, CRC32C and custom metadata of the object; None if there is no object.

        An answer that is no JSON object, as that of a proxy, describes nothing.
        """
        answer = self._ask(lambda: self._client.get(self._bucket, self.key, fields="size,generation,crc32c,metadata"))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self.refused(answer)
        return answer.document or {}

    def refused(self, answer: Answer) -> StorageError:
        """Make an error of an answer."""
        if answer.status == 404:
            return missing_bucket(answer, self._bucket, self.uri)
        error = refusal(answer, self._client.caller, self.uri)
        if isinstance(error, AccessDeniedError) and not isinstance(error, CredentialsError):
            error.hint = _RIGHTS
        return error

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        try:
            return request()
        except Exception as error:
            raise_storage_error(error, self.uri)


class GcsUpload(ProvenUpload):
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = 1
    needs_equal_parts = True

    def __init__(
        self, writer: ObjectWriter, size_bytes: int, replaced: ObjectInfo | None, *, joins: str | None = None
    ) -> None:
        super().__init__(writer.uri, replaced)
        self._writer, self._size_bytes, self._refused = writer, size_bytes, writer.refused
        self._crc = self._crc_bytes = self._last_offset = 0
        self._last = b""  # the end of the object, which `finish` sends
        self._id = joins or self._begin()

    def share(self) -> tuple[str, int]:
        """Return the id of the session, to which one process sends all parts, and the size of the object."""
        return self._id, self._size_bytes

    def sent(self) -> Any:
        """Return what `finish` needs in the process that has begun the session; None if nothing was sent."""
        if not self.sent_bytes:
            return None
        last = base64.b64encode(self._last).decode()
        return self.sent_bytes, self._id, self._crc, self._last_offset, last

    def add(self, sent: Any) -> None:
        """Take over what another process has sent."""
        if sent is not None:
            self.sent_bytes, self._id, self._crc, self._last_offset, last = sent
            self._last, self._crc_bytes = base64.b64decode(last), self.sent_bytes

    def _begin(self) -> str:
        """Begin a session, and return its id."""
        condition = (self._replaced.version or "") if self._replaced else "0"
        query = {"uploadType": "resumable", "name": self._writer.key} | (
            {"ifGenerationMatch": condition} if condition else {}
        )
        mark = json.dumps({"metadata": {MARK: self.mark}}).encode()
        answer = self._writer.upload("POST", query, mark, {"Content-Type": "application/json"})
        if answer.status == 412:
            raise changed_meanwhile(self._uri, self._replaced, status=412)
        if answer.status != 200:
            raise self._refused(answer)
        # Only the id in the answer's URL is used, so that the credentials are sent to no other host.
        upload_id = parse_qs(urlsplit(answer.headers.get("location", "")).query).get("upload_id", [""])[0]
        if not upload_id:
            what = "the answer to the beginning of an upload is not that of Google: it has no upload_id"
            raise StorageError(what, uri=self._uri, hint="Check endpoint_url, and the proxies on the way to it")
        return upload_id

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one chunk, but hold back the end of the last chunk; raises as `Upload.send`."""
        if offset_bytes == self._crc_bytes:
            self._crc = _native.crc("crc32c", part, self._crc)
            self._crc_bytes += part.nbytes
        self.note_sent(offset_bytes, part)
        if self._last and self._last_offset + len(self._last) == offset_bytes:  # the held part was not the last
            self._send(self._last_offset, memoryview(self._last))
            self._last = b""
        if self._size_bytes == offset_bytes + part.nbytes:
            kept_bytes = part.nbytes % CHUNK_MULTIPLE_BYTES or min(part.nbytes, CHUNK_MULTIPLE_BYTES)
            self._last = bytes(part[part.nbytes - kept_bytes :])
            part = part[: part.nbytes - kept_bytes]
            self._last_offset = offset_bytes + part.nbytes
        self._send(offset_bytes, part)

    def _send(self, offset_bytes: int, part: memoryview) -> None:
        if part.nbytes and (answer := self._put_all(offset_bytes, part)).status != INCOMPLETE:
            raise self._failed(answer)

    def _put_all(self, offset_bytes: int, data: memoryview, *, is_last: bool = False) -> Answer:
        """Send bytes until Google has all of them; return its last answer, or another than 308.

        Google may keep only some of the bytes, or none; it reports their number (no ``Range``: it has none at all). A
        session that it no longer knows begins anew, if all bytes of the object are here.
        """
        begin_bytes, whole, idle = offset_bytes, data, 0
        while True:
            answer = self._put(offset_bytes, data, is_last=is_last)
            is_lost = answer.status in GONE and not begin_bytes and idle < MOST_IDLE
            if is_lost and self._is_from_before(self._look()):
                self._id, offset_bytes, data = self._begin(), 0, whole
                idle += 1
                continue
            if answer.status != INCOMPLETE:
                return answer
            received_bytes = self._received(answer)
            if not offset_bytes <= received_bytes <= offset_bytes + data.nbytes or idle >= MOST_IDLE:
                what = f"Google has received {received_bytes} bytes of the object, and takes no more"
                raise StorageError(what, uri=self._uri, hint="Save again; the destination has not changed")
            data = data[received_bytes - offset_bytes :]
            if not data.nbytes and not is_last:
                return answer
            if received_bytes == offset_bytes:
                sleep(PAUSE_S * 2**idle)
                idle += 1
            offset_bytes = received_bytes

    def _check_parts(self) -> None:
        """Do nothing: Google compares size and checksum itself, before the object is replaced."""

    def _commit(self) -> str | None:
        """Send the end, which completes the object; return its generation."""
        answer = self._put_all(self._size_bytes - len(self._last), memoryview(self._last), is_last=True)
        if answer.status in (200, 201):
            generation = (answer.document or {}).get("generation")
            return None if generation is None else str(generation)
        raise self._failed(answer)

    def _look(self) -> FoundObject | None:
        found = self._writer.found()
        if found is None:
            return None
        size, generation, crc32c = found.get("size"), found.get("generation"), found.get("crc32c")
        return FoundObject(
            None if size is None else parse_size(size, self._uri),
            None if generation is None else str(generation),
            (found.get("metadata") or {}).get(MARK),
            None if crc32c is None else crc32c == self._crc32c(),
        )

    def _remove(self, found: FoundObject) -> None:
        self._writer.remove(found.version)

    def _discard(self) -> None:
        answer = self._writer.upload("DELETE", self._session(), b"", {})
        if answer.status not in (CANCELLED, 200, 204, 404, 410):
            raise self._refused(answer)

    def _put(self, offset_bytes: int, data: bytes | memoryview, *, is_last: bool = False) -> Answer:
        span = f"{offset_bytes}-{offset_bytes + len(data) - 1}" if data else "*"
        span = f"bytes {span}/{self._size_bytes}"
        # Google compares this checksum before the object replaces an older one.
        checksum = {"X-Goog-Hash": f"crc32c={self._crc32c()}"} if is_last else {}
        return self._writer.upload("PUT", self._session(), data, {"Content-Range": span, **checksum})

    @staticmethod
    def _received(answer: Answer) -> int:
        """Return how many bytes of the object Google has."""
        match = _RECEIVED.fullmatch(answer.headers.get("range", ""))
        return int(match[1]) + 1 if match else 0

    def _crc32c(self) -> str:
        return base64.b64encode(self._crc.to_bytes(4, "big")).decode()

    def _session(self) -> dict[str, str]:
        return {"uploadType": "resumable", "upload_id": self._id}

    def _failed(self, answer: Answer) -> StorageError:
        """Make an error of an answer about the session; its 404 says nothing about the bucket."""
        if answer.status in (409, 412):
            return changed_meanwhile(self._uri, self._replaced, status=answer.status)
        if answer.status in GONE:
            what = "Google no longer has this upload: it removed it, or another program ended it"
            return StorageError(what, uri=self._uri, hint="Save again", status=answer.status, code=answer.reason)
        return self._refused(answer)
