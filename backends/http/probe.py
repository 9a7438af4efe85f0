"""Looks up objects of a web server: size, version, and whether the server has ranges.

Guarantees: an answer of unknown size, a compressed answer, and a web page in place of weights are errors. Names of
headers are in lower case, or their mapping ignores case.

One GET of one byte is sent, because servers may answer a HEAD differently. If the answer leaves the size open, a second
GET is sent, whose body is not read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

from streamer.backends.client.answer_values import (
    FOREIGN,
    clock_offset_s,
    described,
    is_plain,
    parse_size,
    parse_word,
)
from streamer.backends.client.first_byte import DOWNLOAD_IT, FIRST_BYTE, MEND_RANGES, size_of
from streamer.backends.client.redirects import Hop
from streamer.backends.http.client import HttpClient
from streamer.backends.http.index_page import PARTIAL, media_type
from streamer.core.engine.native_errors import HOW_TO_STORE
from streamer.core.errors import (
    ChangedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
)
from streamer.core.store.versions import seconds_of, settled_at

_SHARD = ".safetensors"
_WEIGHTS = (_SHARD, ".json")
_PAGES = (".html", ".htm", ".xhtml")
_OTHER_PAGE = "It may want a login (storage_options headers or auth), or a proxy puts its own page in the way"
_BLOB_PAGE = "A /blob/ page describes a file: give hf://owner/name/file, or the URL of its download (/resolve/, /raw/)"


@dataclass(frozen=True)
class Probe:
    """The current state of one object."""

    hop: Hop  # URL of the object after all redirects, and the headers for this URL
    size_bytes: int  # size of the object
    version: str | None  # ETag of the object, or its modification time, or None if the server sends neither
    version_header: str  # the header with the version
    has_ranges: bool  # the server answers requests for ranges
    expires_at_s: float | None  # Unix time at which the URL expires, or None if it names none
    whole_version: str | None  # as `whole_version_in` returns it
    settled_at: float  # as of `ObjectInfo`
    answer: str = field(default="", compare=False)  # the answer, for the error that a later answer is another one


def version_in(headers: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the version in the headers of an answer, and the name of its header.

    A value that is not ASCII is ignored: libraries decode it in different ways, so it cannot be compared.
    """
    for name in ("ETag", "Last-Modified"):
        value = headers.get(name.lower())
        if value and value.isascii() and value.isprintable():
            return value, name
    return None, "ETag"


def whole_version_in(headers: Mapping[str, str]) -> str | None:
    """Return the version in the headers of an answer; a weak ETag, which other bytes may have, has the time beside it.

    Example:
        >>> whole_version_in({"etag": 'W/"1"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"})
        'W/"1" Thu, 01 Jan 2026 00:00:00 GMT'
    """
    version, _ = version_in(headers)
    changed = headers.get("last-modified")
    is_weak = version is not None and version.startswith("W/") and seconds_of(changed) is not None
    return f"{version} {changed}" if is_weak else version


def expiry_of(url: str, headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the time by this machine's clock at which a signed URL expires, or None if only the server can tell.

    The server's clock decides, so the time that is left is measured from the ``Date`` of the server's answer. A time
    that has passed may be a lifetime in seconds, or of another clock.
    """
    query = {name.lower(): values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        if "x-amz-expires" in query:
            signed = datetime.strptime(query["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            expires_at_s = (signed + timedelta(seconds=int(query["x-amz-expires"]))).timestamp()
        else:
            expires_at_s = float(int(query["expires"]))
    except (KeyError, ValueError, OverflowError):
        return None
    left_s = expires_at_s - now_s - (clock_offset_s(headers.get("date"), now_s) or 0.0)
    return now_s + left_s if left_s > 0 else None


def probe_of(hop: Hop, headers: Mapping[str, str], size_bytes: int, *, has_ranges: bool) -> Probe:
    """Describe an object by the headers of an answer, which came from `hop`."""
    version, version_header = version_in(headers)
    changed, now_s = headers.get("last-modified"), seconds_of(headers.get("date"))
    at = settled_at(version, changed_at_s=seconds_of(changed), now_s=now_s)
    whole_version = whole_version_in(headers)
    expires_at_s = expiry_of(hop.url, headers, time.time())
    if whole_version != version and changed is not None:  # each answer must have the time that is beside a weak ETag
        version, version_header = changed, "Last-Modified"
    answer = described(headers)
    return Probe(hop, size_bytes, version, version_header, has_ranges, expires_at_s, whole_version, at, answer)


def check_kind(headers: Mapping[str, str], path: str, uri: str) -> None:
    """Refuse an answer that is compressed, or a web page in place of a file."""
    if not is_plain(headers):
        encoding = parse_word(headers.get("content-encoding", "")) or "in several ways"
        raise RangeResponseError(
            f"The server compresses the file ({encoding}), though it was asked not to",
            uri=uri,
            hint=HOW_TO_STORE,
        )
    is_page = media_type(headers) == "text/html"
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


def _check_whole_answer(headers: Mapping[str, str], size_bytes: int, path: str, uri: str) -> None:
    """Refuse an answer without a version that cannot be the weights, though it may be of a status 200."""
    is_text = media_type(headers) in ("application/json", "application/xml", "text/xml") and path.endswith(_SHARD)
    if version_in(headers)[0] is None and path.lower().endswith(_WEIGHTS) and (is_text or not size_bytes):
        what = f"The server answers with {described(headers)}, instead of the file"
        raise CredentialsError(what, uri=uri, status=200, hint=_OTHER_PAGE)


def replaced(uri: str, what: str, expected: tuple[str | None, str], found: tuple[str | None, str]) -> StorageError:
    """Make the error for another version; if only one of two answers has one, they may be of two servers."""
    if (expected[0] is None) == (found[0] is None):
        return ChangedError(what, uri=uri, hint="Load again, and do not overwrite a checkpoint while it is read")
    what = f"The server answers two requests for the file in different ways: with {expected[1]}, and with {found[1]}"
    return RangeResponseError(what, uri=uri, hint=f"{FOREIGN}: load again")


def probe_object(client: HttpClient, start: Hop, uri: str) -> Probe:
    """Request the first byte of an object."""
    try:
        answer = client.open(start, uri, FIRST_BYTE)
    except RangeResponseError as error:  # status 416: the object has not even one byte
        if error.status == 416:
            return _probe_empty(client, start, uri)
        raise
    try:
        check_kind(answer.headers, urlsplit(start.url).path, uri)
        size_bytes, has_ranges = size_of(answer.response.status, answer.headers, uri)
        if answer.response.status != PARTIAL and size_bytes is not None:
            _check_whole_answer(answer.headers, size_bytes, urlsplit(start.url).path, uri)
        if answer.response.status == PARTIAL:
            answer.response.finish()  # so that the connection is kept
    finally:
        answer.response.close()
    if size_bytes is None:
        return _probe_whole(client, start, uri)
    return probe_of(answer.hop, answer.headers, size_bytes, has_ranges=has_ranges)


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
            "The server does not report the size of the file: its ranges leave the total open, and a whole answer "
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
