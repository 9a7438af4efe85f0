"""Looks up objects and folders of a web server.

Guarantees: one GET of one byte is sent, because servers may answer a HEAD differently. If the answer leaves the size
open, a second GET is sent, whose body is not read.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from streamer.backends.client.answer_values import parse_size
from streamer.backends.client.redirects import Hop
from streamer.backends.http.client import HttpClient
from streamer.backends.http.index_page import MAX_PAGE_BYTES, NAME_THE_INDEX, PAGES, is_page, is_whole, media_type
from streamer.backends.http.probe import (
    DOWNLOAD_IT,
    FIRST_BYTE,
    MEND_RANGES,
    Probe,
    check_kind,
    covers_all,
    probe_of,
    size_of,
    version_in,
)
from streamer.core.errors import RangeResponseError, StorageError

__all__ = ["index_page", "probe_object"]

PARTIAL = 206


def probe_object(client: HttpClient, start: Hop, uri: str) -> Probe:
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
        answer = client.open(start, uri, FIRST_BYTE)
    except RangeResponseError as error:  # 416: not even one byte
        if error.status == 416:
            return _probe_empty(client, start, uri)
        raise
    try:
        check_kind(answer.headers, urlsplit(start.url).path, uri)
        size_bytes, has_ranges = size_of(answer.response.status, answer.headers, uri)
        if answer.response.status == 206:
            answer.response.finish()  # so that the connection is kept
    finally:
        answer.response.close()
    if size_bytes is None:
        return _probe_whole(client, start, uri)
    return probe_of(answer.hop, answer.headers, size_bytes, has_ranges=has_ranges)


def index_page(client: HttpClient, folder: Hop, uri: str) -> tuple[bytes, str]:
    """Request the index page of a folder; return the page and its URL. The page is empty if the answer is no page.

    Args:
        client: Sends the request.
        folder: URL of the folder with a slash at the end, and the headers for its host.
        uri: The URL for messages, without secrets.

    Raises:
        StorageError: the server or the network failed, or the page is too large, or may be truncated.
    """
    answer = client.open(folder, uri, {})
    stated = media_type(answer.headers)
    try:
        page = answer.response.read_up_to(MAX_PAGE_BYTES + 1) if stated in PAGES else b""
    except StorageError as error:
        error.uri = uri
        raise
    finally:
        answer.response.close()
    if not is_page(answer.headers, page):
        return b"", answer.hop.url
    if answer.response.status == PARTIAL and not covers_all(answer.headers):
        what = "The server sends a part of the folder's index page, though all of it was asked for"
        raise StorageError(what, uri=uri, status=PARTIAL, hint=NAME_THE_INDEX)
    if len(page) > MAX_PAGE_BYTES:
        raise StorageError("The index page of the folder has no end", uri=uri, hint=NAME_THE_INDEX)
    if not is_whole(answer.headers, page):
        what = "The index page of the folder may be cut: neither a length nor </html> tells where it ends"
        raise StorageError(what, uri=uri, hint=NAME_THE_INDEX)
    return page, answer.hop.url


def _probe_whole(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the object without a range, because only the answer to that request has its size; do not read its body.

    Its blocks are compared by version, because their ranges may leave the total open, too. Without a version it is read
    in one stream.
    """
    answer = client.open(start, uri, {})
    answer.response.close()
    check_kind(answer.headers, urlsplit(start.url).path, uri)
    length = answer.headers.get("content-length", "")
    if answer.response.status != 200 or not length:
        raise StorageError(
            "The server does not tell the size of the file: it leaves the total of its ranges open, and a whole answer "
            "has no length",
            uri=uri,
            hint=DOWNLOAD_IT,
        )
    version, _ = version_in(answer.headers)
    return probe_of(answer.hop, answer.headers, parse_size(length, uri), has_ranges=version is not None)


def _probe_empty(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the object without a range, because an empty object has no first byte."""
    answer = client.open(start, uri, {})
    answer.response.close()
    if answer.headers.get("content-length") != "0":
        raise RangeResponseError(
            "The server gives the file, but not its first byte", uri=uri, status=416, hint=MEND_RANGES
        )
    return probe_of(answer.hop, answer.headers, 0, has_ranges=True)
