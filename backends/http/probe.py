"""Requests the first byte of an HTTP object to learn its size, version and final URL, and whether it has ranges.

Guarantees: one GET of one byte, because the answer of servers to a HEAD may differ; a second one, whose body is not
read, where the first leaves the size open. An answer of unknown size, one that is compressed, and a web page in place
of weights are errors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import aiohttp

from streamer.backends.client.answer_values import parse_size
from streamer.backends.client.encodings import is_plain
from streamer.backends.client.redirects import Hop
from streamer.backends.http.client import HttpClient, OpenResponse
from streamer.core.errors import CredentialsError, ObjectNotFoundError, RangeResponseError, StorageError

__all__ = ["Probe", "expiry_of", "probe_object", "version_in"]

FIRST_BYTE_WAIT_S = 1.0  # after the header; a new connection costs less than a longer wait

_FIRST_BYTE = {"Range": "bytes=0-0"}
_RANGE = re.compile(r"bytes\s+0-0/([0-9]+|\*)", re.IGNORECASE)
_OPEN = "*"  # the server leaves the total open
_WEIGHTS = (".safetensors", ".json")
_PAGES = (".html", ".htm", ".xhtml")
_OTHER_PAGE = "It may want a login (storage_options headers or auth), or a proxy puts its own page in the way"
_BLOB_PAGE = "A /blob/ page describes a file: give hf://owner/name/file, or the URL of its download (/resolve/, /raw/)"
_DOWNLOAD_IT = "Download it and load the copy: without its size a part could not be told from the whole file"
_MEND_RANGES = "The server, or a proxy before it, handles ranges wrongly: turn them off there, or download the file"


@dataclass(frozen=True)
class Probe:
    """The current state of one object.

    Attributes:
        hop: Its URL after all redirects, and the headers for that.
        size_bytes: Its size.
        version: Its ETag, or its modification time, or None where the server sends neither.
        version_header: The header with the version.
        has_ranges: The server answers requests for ranges.
    """

    hop: Hop
    size_bytes: int
    version: str | None
    version_header: str
    has_ranges: bool


async def probe_object(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the first byte of an object.

    Args:
        client: Sends the request.
        start: The object's URL, and the headers for its host.
        uri: The URL for messages, without secrets.

    Raises:
        ObjectNotFoundError: there is no such object, or it is a folder.
        CredentialsError: the server demands a login, with a status or with a page.
        StorageError: any other error of the server or the network.
    """
    try:
        answer = await client.open(start, uri, _FIRST_BYTE)
    except RangeResponseError as error:  # 416: not even one byte
        if error.status == 416:
            return await _probe_empty(client, start, uri)
        raise
    try:
        _check_kind(answer.headers, urlsplit(start.url).path, uri)
        size_bytes, has_ranges = _size(answer.response.status, answer.headers, uri)
        if answer.response.status == 206:
            await _take_first_byte(answer.response)
    finally:
        answer.response.close()
    if size_bytes is None:
        return await _probe_whole(client, start, uri)
    return _probe_of(answer, size_bytes, has_ranges)


def version_in(headers: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the version in the headers of an answer, and the name of its header.

    A value that is not ASCII is ignored: libraries decode it in different ways, so that it could not be compared.
    """
    for name in ("ETag", "Last-Modified"):
        if headers.get(name) and headers[name].isascii() and headers[name].isprintable():
            return headers[name], name
    return None, "ETag"


def expiry_of(url: str) -> float | None:
    """Return the Unix time at which a signed URL expires, or None where it has none.

    Args:
        url: Signed by AWS (``X-Amz-Date``, ``X-Amz-Expires``) or CloudFront (``Expires``).
    """
    query = {name.lower(): values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        if "x-amz-expires" in query:
            signed = datetime.strptime(query["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            return (signed + timedelta(seconds=int(query["x-amz-expires"]))).timestamp()
        return float(int(query["expires"])) if "expires" in query else None
    except (KeyError, ValueError, OverflowError):
        return None


async def _take_first_byte(response: aiohttp.ClientResponse) -> None:
    """Read the byte, so that the connection is kept; a failure does not matter, as the headers are enough."""
    if response.content_length not in (1, None):
        return
    with suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
        await asyncio.wait_for(response.content.read(2), FIRST_BYTE_WAIT_S)


async def _probe_whole(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the object without a range, as only that answer tells its size; its body is left unread.

    Blocks of it are compared by version, because their total may be open, too. Without a version it is read in one
    stream.
    """
    answer = await client.open(start, uri, {})
    answer.response.close()
    _check_kind(answer.headers, urlsplit(start.url).path, uri)
    length = answer.headers.get("Content-Length", "")
    if answer.response.status != 200 or not length:
        raise StorageError(
            "The server does not tell the size of the file: it leaves the total of its ranges open, and a whole answer "
            "has no length",
            uri=uri,
            hint=_DOWNLOAD_IT,
        )
    version, _ = version_in(answer.headers)
    return _probe_of(answer, parse_size(length, uri), has_ranges=version is not None)


async def _probe_empty(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the object without a range: an empty one has no first byte."""
    answer = await client.open(start, uri, {})
    answer.response.close()
    if answer.response.content_length != 0:
        raise RangeResponseError(
            "The server gives the file, but not its first byte", uri=uri, status=416, hint=_MEND_RANGES
        )
    return _probe_of(answer, 0, has_ranges=True)


def _probe_of(answer: OpenResponse, size_bytes: int, has_ranges: bool) -> Probe:
    version, version_header = version_in(answer.headers)
    return Probe(answer.hop, size_bytes, version, version_header, has_ranges)


def _check_kind(headers: Mapping[str, str], path: str, uri: str) -> None:
    if not is_plain(headers):
        raise RangeResponseError(
            "The server compresses the file, though it was asked not to",
            uri=uri,
            hint="Turn compression off for these files, there or in the proxy before it",
        )
    is_page = headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html"
    if is_page and path.lower().endswith(_WEIGHTS):
        raise CredentialsError(
            "The server answers with a web page instead of the file",
            uri=uri,
            hint=_BLOB_PAGE if "/blob/" in path else _OTHER_PAGE,
        )
    if is_page and not path.lower().endswith(_PAGES):
        raise ObjectNotFoundError(
            "This is a folder or a web page, not a file",
            uri=uri,
            hint="Name a .safetensors file, or a folder whose page links to some",
        )


def _size(status: int, headers: Mapping[str, str], uri: str) -> tuple[int | None, bool]:
    """Return the object's size, None where a range leaves it open, and whether the server answers ranges."""
    content_range = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if status == 206:
        if content_range is None:
            raise RangeResponseError(
                "The server sends another range than the requested one", uri=uri, status=status, hint=_MEND_RANGES
            )
        return None if content_range[1] == _OPEN else parse_size(content_range[1], uri), True
    if status != 200:
        raise StorageError("The server answers without a file", uri=uri, status=status, hint="Check the URL")
    has_total = content_range is not None and content_range[1] != _OPEN
    length = content_range[1] if content_range and has_total else headers.get("Content-Length", "")
    if not length:
        raise StorageError(
            "The server sends neither the size of the file nor ranges of it",
            uri=uri,
            hint=_DOWNLOAD_IT,
        )
    size_bytes = parse_size(length, uri)
    return size_bytes, size_bytes <= 1 and content_range is None
