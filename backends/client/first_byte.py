"""Learns the size of an object from a request for its first byte.

A proxy or CDN may leave ``Content-Length`` out of its answers to HEAD (RFC 9110, 9.3.2), but an answer to a range
states the size of the whole object in ``Content-Range``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from streamer.backends.client.answer_times import AnswerTimes
from streamer.backends.client.answer_values import FOREIGN, described, is_plain, is_text, parse_size
from streamer.backends.client.error_rows import row_of_status
from streamer.backends.client.exchange import send
from streamer.backends.client.retry import answered
from streamer.core.engine.native_errors import HOW_TO_STORE
from streamer.core.errors import RangeResponseError, StorageError
from streamer.core.store.sources import HttpSource

FIRST_BYTE = {"Range": "bytes=0-0"}
_RANGE = re.compile(r"bytes\s+0-0/([0-9]+|\*)", re.IGNORECASE)
_EMPTY = re.compile(r"bytes\s+\*/0", re.IGNORECASE)
_OPEN = "*"  # the server leaves the total open
DOWNLOAD_IT = "Download it and load the copy: without a size, a truncated file looks complete"
MEND_RANGES = "The server, or a proxy before it, handles ranges wrongly: turn ranges off in it, or download the file"
_NO_SIZE = "The server states the size of the object neither in its answer to a HEAD nor in one to a range"


def size_of(status: int, headers: Mapping[str, str], uri: str) -> tuple[int | None, bool]:
    """Return the object's size (None if a range leaves it open), and whether the server answers ranges."""
    content_range = _RANGE.fullmatch(headers.get("content-range", "").strip())
    if status == 206:
        if content_range is None:
            raise RangeResponseError(
                "The server sends another range than the requested one", uri=uri, status=status, hint=MEND_RANGES
            )
        return None if content_range[1] == _OPEN else parse_size(content_range[1], uri), True
    if status != 200:
        raise StorageError("The server answers without a file", uri=uri, status=status, hint="Check the URL")
    has_total = content_range is not None and content_range[1] != _OPEN
    length = content_range[1] if content_range and has_total else headers.get("content-length", "")
    if not length:
        raise StorageError(
            f"The server sends neither the size of the file nor ranges of it, but {described(headers)}",
            uri=uri,
            status=status,
            hint=FOREIGN if is_text(headers.get("content-type", "")) else DOWNLOAD_IT,
        )
    size_bytes = parse_size(length, uri)
    # Some gateways send a range under status 200; the engine accepts it if length and total prove that it is one.
    has_ranges = headers.get("content-length") == "1" if has_total else size_bytes <= 1 and content_range is None
    return size_bytes, has_ranges


def size_by_first_byte(source: HttpSource, times: AnswerTimes, uri: str) -> int:
    """Request the first byte of an object whose HEAD has no length."""
    ranged = replace(source, headers={**source.headers, **FIRST_BYTE})
    response, attempts = answered(
        lambda each: send(ranged, times, head_timeout_s=each.head_timeout_s, is_repeated=each.is_repeated), times, uri
    )
    headers, status = response.headers, response.status
    response.finish() if status == 206 else response.close()  # a short body is read so that the connection is kept
    if status == 416 and _EMPTY.fullmatch(headers.get("content-range", "").strip()):
        return 0
    if status < 300 and not is_plain(headers):
        what = f"The object is compressed ({headers['content-encoding'][:40]})"
        raise RangeResponseError(what, uri=uri, status=status, hint=HOW_TO_STORE)
    if status >= 300:
        raise row_of_status(status, _NO_SIZE).error(uri, status=status, attempts=attempts.number)
    size_bytes, _ = size_of(status, headers, uri)
    if size_bytes is None:
        raise StorageError(_NO_SIZE, uri=uri, status=status, hint=DOWNLOAD_IT)
    return size_bytes
