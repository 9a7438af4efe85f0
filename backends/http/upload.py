"""Writes one file to a web server by one ``PUT`` (RFC 9110, 9.3.4), if the server takes any.

Guarantees: one request writes the whole file. Its condition lets it fail if the file exists (``If-None-Match: *``) or
if the file to replace has changed (``If-Match``). Many servers ignore conditions, so the file is also looked up right
before the request, and afterwards (`streamer.core.store.own_objects`). A file of more than a MiB is sent with its last
part, before `finish`, because the memory cannot hold all files of a checkpoint until then. Refuses files above
`MOST_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from streamer import _native
from streamer.backends.client.error_rows import ErrorRow
from streamer.backends.client.redirects import REDIRECTS, Hop, refused_redirect
from streamer.backends.http.client import HttpClient
from streamer.backends.http.errors import refusal
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError, StorageError, StreamerError, UsageError
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile
from streamer.core.store.versions import is_same_version

MOST_BYTES = 256 << 20  # per file; up to eight files are in memory until they are sent
HELD_BYTES = 1 << 20  # a smaller file is sent in `finish`
MOST_LOOKS = 3  # before the request: a proxy may have given the answer to one of them

_LESS = "Save with max_shard_bytes='250MB', or to a disk or an object store, and publish it from there"
_ALLOW = (
    "Allow PUT and DELETE in it (nginx: dav_methods PUT DELETE; create_full_put_path on), or save to a disk or an "
    "object store, and publish it from there"
)
_REFUSED: Mapping[int, ErrorRow[StreamerError]] = {
    HTTPStatus.METHOD_NOT_ALLOWED: ErrorRow(UsageError, "The server does not allow {method} for this URL", _ALLOW),
    HTTPStatus.NOT_IMPLEMENTED: ErrorRow(UsageError, "The server does not support {method}", _ALLOW),
    HTTPStatus.CONFLICT: ErrorRow(StorageError, "The server has no folder for this file", "Make the folder first"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorRow(
        StorageError, "The file is larger than the server accepts", "Raise its limit (nginx: client_max_body_size)"
    ),
    HTTPStatus.INSUFFICIENT_STORAGE: ErrorRow(
        StorageError, "The server's disk is full, or a quota is used up", "Make room on the server"
    ),
}


@dataclass(frozen=True)
class HttpFile:
    """Sends requests that change one file."""

    client: HttpClient  # the client of the store
    start: Hop = field(repr=False)  # URL and headers of the file
    uri: str  # the URL of the file, without secrets

    def put(self, body: bytes | memoryview, condition: Mapping[str, str]) -> bool:
        """Write the file; return False if the condition failed and the server's file has other content."""
        status = self._change("PUT", condition, body, (200, 201, 204, HTTPStatus.PRECONDITION_FAILED))
        if status != HTTPStatus.PRECONDITION_FAILED:
            return True
        # An earlier attempt, whose answer was lost, may have written it.
        return self.holds(_native.crc("crc32c", body), memoryview(body).nbytes)

    def remove(self) -> None:
        """Remove the file; do nothing if it does not exist."""
        self._change("DELETE", {}, b"", (200, 202, 204, HTTPStatus.NOT_FOUND, HTTPStatus.GONE))

    def _change(self, method: str, extra: Mapping[str, str], body: bytes | memoryview, wanted: Container[int]) -> int:
        response, attempts = self.client.change(method, self.start, extra, self.uri, body)
        text = response.finish()
        if response.status in wanted:
            return response.status
        if response.status in REDIRECTS:
            raise refused_redirect(response.headers.get("location", ""), self.uri, status=response.status)
        row = _REFUSED.get(response.status)
        if row is not None:
            raise row.filled(method=method).error(self.uri, status=response.status, attempts=attempts.number)
        error = refusal(response.status, response.headers, text, self.uri, attempts=attempts.number)
        if type(error) is AccessDeniedError:
            error.hint = _ALLOW
        raise error

    def holds(self, crc32c: int, size_bytes: int) -> bool:
        """Say whether the file has this content."""
        opened = self.client.open(self.start, self.uri, {"Accept-Encoding": "identity"})
        try:
            content = opened.response.read_up_to(size_bytes + 1)
        finally:
            opened.response.close()
        return len(content) == size_bytes and _native.crc("crc32c", content) == crc32c


class HttpUpload:
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = 1
    needs_equal_parts = False

    def __init__(
        self, file: HttpFile, size_bytes: int, replaced: ObjectInfo | None, info: Callable[[], ObjectInfo]
    ) -> None:
        if size_bytes > MOST_BYTES:
            raise UsageError(f"a web server gets files of {MOST_BYTES >> 20} MiB at most", uri=file.uri, hint=_LESS)
        self._file, self._info, self.uri = file, info, file.uri
        self._size_bytes, self._replaced = size_bytes, replaced
        self._parts: dict[int, memoryview] = {}
        self._may_be_there = self._is_done = False
        self._version = ""  # of the file to replace, as the server showed it last

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Hold a part; with the last part of a large file, send the file. Raises as `Upload.send`."""
        self._parts[offset_bytes] = part
        if self._size_bytes > HELD_BYTES and sum(each.nbytes for each in self._parts.values()) == self._size_bytes:
            self._put()

    def finish(self) -> None:
        """Send a small file; raises as `Upload.finish`."""
        self._put()

    def holds(self, crc32c: int) -> bool:
        """Read the file back; nginx's versions are a time in seconds and a size."""
        return self._file.holds(crc32c, self._size_bytes)

    def abort(self) -> None:
        """Remove a file that was created; raises as `Upload.abort`."""
        self._parts = {}
        if self._may_be_there and self._replaced is None:
            self._file.remove()

    def _put(self) -> None:
        if self._is_done:
            return
        # Some servers ignore conditions.
        if not self._may_be_there and not any(self._is_unchanged() for _ in range(MOST_LOOKS)):
            raise changed_meanwhile(self._file.uri, self._replaced)
        parts = [part for _, part in sorted(self._parts.items())]
        self._may_be_there = True
        try:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            is_written = self._file.put(body, self._condition())
            if not is_written and self._replaced is not None and self._is_unchanged():
                is_written = self._file.put(body, {})  # the server refuses its own ETag
        except UsageError:
            self._may_be_there = False
            raise
        if not is_written:
            self._may_be_there = False
            raise changed_meanwhile(self._file.uri, self._replaced, status=HTTPStatus.PRECONDITION_FAILED)
        self._is_done, self._parts = True, {}

    def _condition(self) -> dict[str, str]:
        if self._replaced is None:
            return {"If-None-Match": "*"}
        return {"If-Match": self._version} if self._version.startswith('"') else {}  # it compares strongly

    def _is_unchanged(self) -> bool:
        """Say whether the server still has the file to replace, or still none if there was none."""
        try:
            self._version = self._info().version or ""
        except ObjectNotFoundError:
            return self._replaced is None
        if self._replaced is None:
            return False
        return self._replaced.version is None or is_same_version(self._version, self._replaced.version)
