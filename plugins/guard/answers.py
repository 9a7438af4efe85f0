"""Checks the answers of a plug-in's store: descriptions, listings, digests, and values that become parts of requests.

Guarantees: results have the documented types, and a listing belongs to one folder: an object in a sub-folder is left
out, an object outside of the folder is refused. An endless listing is refused when it has too many entries.

Guarantees: every result is text for at most one line of a request: it holds no CR, LF or NUL, which would end a header
and begin another header or request. Refuses headers that decide where a request or its answer ends. No message shows a
value, because it may be a secret.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from streamer.core.options.limits import Limits, ListingCount
from streamer.core.quoting import printable, quoted
from streamer.core.store.digests import CHECKSUMS, NoDigest, ObjectDigest, PartDigest, doubt_of, is_sound
from streamer.core.store.sources import MAX_SIZE_BYTES, AnswerChecksum, HttpSource, ObjectInfo
from streamer.plugins.guard.calls import BrokenContractError, kind_of

__all__ = [
    "checked_http",
    "digest_in",
    "info_in",
    "line_in",
    "listing_in",
    "names_in",
    "number_in",
    "path_in",
    "text_in",
]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_URL = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
_OF_THE_ENGINE = frozenset({"content-length", "if-range", "range", "transfer-encoding"})
MOST_CHECKSUMMED_BYTES = 1 << 40  # more than any range; Azure's servers send checksums of at most 4 MiB


def text_in(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    """Return a value if it is text."""
    if isinstance(value, str) or (value is None and may_be_none):
        return value
    raise BrokenContractError(f"gave {kind_of(value)} as {what}, which must be text{' or None' if may_be_none else ''}")


def number_in(value: Any, what: str, low: int, high: int) -> int:
    """Return a value if it is a whole number, of Python or of numpy."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise BrokenContractError(f"gave {kind_of(value)} as {what}, which must be a whole number")
    if not low <= number <= high:
        raise BrokenContractError(f"gave {number} as {what}, which must be from {low} to {high}")
    return number


def info_in(answer: Any, path: str | None = None) -> ObjectInfo:
    """Return the description of one object."""
    if not isinstance(answer, ObjectInfo):
        raise BrokenContractError(f"returned {kind_of(answer)}, not an ObjectInfo")
    if not text_in(answer.path, "path"):
        raise BrokenContractError("gave an empty path, which names no object")
    if path is not None and answer.path.strip("/") != path.strip("/"):
        raise BrokenContractError(f"described {printable(answer.path[:200])} when asked for {printable(path[:200])}")
    text_in(answer.uri, "uri")
    text_in(answer.version, "version", may_be_none=True)
    if answer.size_bytes is None:
        return answer
    size_bytes = number_in(answer.size_bytes, "size_bytes", 0, MAX_SIZE_BYTES)
    return answer if type(answer.size_bytes) is int else replace(answer, size_bytes=size_bytes)


def listing_in(answer: Any, folder: str, limits: Limits, uri: str) -> list[ObjectInfo]:
    """Return the objects directly in a folder, sorted."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BrokenContractError(f"returned {kind_of(answer)}, not a list of ObjectInfo")
    count = ListingCount(limits, uri)
    listed: dict[str, ObjectInfo] = {}
    for each in answer:
        count.add(1)
        if not isinstance(each, ObjectInfo):
            raise BrokenContractError(f"listed {kind_of(each)}, not an ObjectInfo")
        info = info_in(each)
        if not is_directly_in(folder, info.path):
            continue
        if info.path in listed:
            raise BrokenContractError(f"listed {quoted(info.path)} twice")
        listed[info.path] = info
    return sorted(listed.values(), key=lambda info: info.path)


def names_in(answer: Any, limits: Limits, uri: str | None) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BrokenContractError(f"returned {kind_of(answer)}, not a list of names")
    count, names = ListingCount(limits, uri or ""), set()
    for each in answer:
        count.add(1)
        name = str(text_in(each, "name of a folder"))
        if "/" in name:
            raise BrokenContractError(f"listed {quoted(name)}, which is not the name of one folder: it has a slash")
        names.add(name)
    return sorted(names)


def is_directly_in(folder: str, path: str) -> bool:
    """Return whether a listed path is an object directly in a folder, not the folder itself or in a sub-folder.

    Example:
        >>> [is_directly_in("models/llama", f"models/llama{rest}") for rest in ("/a.safetensors", "/old/b", "/", "")]
        [True, False, False, False]
    """
    inside, rest = folder.strip("/"), path.lstrip("/")
    if inside:
        if rest.rstrip("/") == inside:
            return False
        if not rest.startswith(f"{inside}/"):
            raise BrokenContractError(f"listed {quoted(path)}, which is not in the folder {quoted(folder)}")
        rest = rest[len(inside) + 1 :]
    if ".." in rest.split("/"):
        raise BrokenContractError(f"listed {quoted(path)}, which leads out of the folder {quoted(folder)}")
    return bool(rest) and "/" not in rest


def digest_in(answer: Any, info: ObjectInfo) -> ObjectDigest | NoDigest:
    """Return the digest of an object."""
    if isinstance(answer, NoDigest):
        text_in(answer.reason, "reason of NoDigest")
        return answer
    if not isinstance(answer, ObjectDigest):
        raise BrokenContractError(f"returned {kind_of(answer)}, neither an ObjectDigest nor a NoDigest")
    text_in(answer.algorithm, "algorithm")
    for part in answer.parts:
        if not isinstance(part, PartDigest):
            raise BrokenContractError(f"has {kind_of(part)} among its parts, not a PartDigest")
        text_in(part.value, "value of a part")
        number_in(part.end, "end of a part", 0, MAX_SIZE_BYTES)
    if doubt_of(answer, info.version) is None and not is_sound(answer, info.size_bytes):
        raise BrokenContractError(
            f"gave a digest by {quoted(answer.algorithm)} that is not sound: its algorithm is unknown, its parts do "
            f"not cover the {info.size_bytes} bytes of the object, or a value is not all its digits in lower case"
        )
    return answer


def checked_http(source: HttpSource) -> HttpSource:
    """Return the source as a plain value of checked parts; `refresh` stays unchanged."""
    if not _URL.match(line_in(source.url, "url")) or any(letter.isspace() for letter in source.url):
        raise BrokenContractError("gave a url that is not http:// or https://, or has spaces that are not quoted")
    if source.refresh is not None and not callable(source.refresh):
        raise BrokenContractError(f"gave {kind_of(source.refresh)} as refresh, which must be a function or None")
    return HttpSource(
        url=source.url,
        headers=_headers(source.headers),
        version=line_in(source.version, "version", may_be_none=True),
        version_header=_token(source.version_header, "version_header", may_be_none=True),
        expires_at_s=_time(source.expires_at_s),
        refresh=source.refresh,
        ca_file=path_in(source.ca_file, "ca_file", may_be_none=True),
        proxy=line_in(source.proxy, "proxy", may_be_none=True),
        answer_checksum=_checksum(source.answer_checksum),
        is_redirect=bool(source.is_redirect),
        client_cert=path_in(source.client_cert, "client_cert", may_be_none=True),
        client_key=path_in(source.client_key, "client_key", may_be_none=True),
    )


def path_in(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    """Return a path as text."""
    if value is None and may_be_none:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise BrokenContractError(f"gave {kind_of(value)} as {what}, which must be a path without NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise BrokenContractError(f"gave {what} with half a character, which no path of this system has") from None
    return path


def _headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise BrokenContractError(f"gave {kind_of(headers)} as headers, which must be a mapping of names to values")
    checked: dict[str, str] = {}
    for name in headers:
        _token(name, "the name of a header")
        if name.lower() in _OF_THE_ENGINE:
            raise BrokenContractError(f"gave a header {quoted(name)}, which the engine sets itself")
        checked[name] = line_in(headers[name], f"the header {quoted(name)}")
    return checked


def line_in(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    """Return a text if it fits into one line of a request."""
    text = text_in(value, what, may_be_none=may_be_none)
    if text is None:
        return None
    position = next((place for place, letter in enumerate(text) if letter in "\r\n\0"), None)
    if position is not None:
        raise BrokenContractError(f"gave {what} with a CR, LF or NUL at position {position}, where the line would end")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BrokenContractError(f"gave {what} with half a character, which cannot be sent") from None
    return str(text)


def _token(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    text = text_in(value, what, may_be_none=may_be_none)
    if text is not None and not _TOKEN.fullmatch(text):
        raise BrokenContractError(f"gave {what} that is no token (letters, digits and !#$%&'*+.^_`|~-)")
    return text


def _time(value: Any) -> float | None:
    if value is None:
        return None
    try:
        time_s = float(value)
    except (TypeError, ValueError):
        time_s = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(time_s):
        raise BrokenContractError(f"gave {kind_of(value)} as expires_at_s, which must be a Unix time or None")
    return time_s


def _checksum(checksum: Any) -> AnswerChecksum | None:
    if checksum is None:
        return None
    if not isinstance(checksum, AnswerChecksum):
        raise BrokenContractError(f"gave {kind_of(checksum)} as answer_checksum, which must be an AnswerChecksum")
    if not isinstance(checksum.request_header, tuple) or len(checksum.request_header) != 2:
        raise BrokenContractError("gave a request_header of answer_checksum that is no pair of name and value")
    if checksum.algorithm not in tuple(CHECKSUMS):
        raise BrokenContractError(f"gave an algorithm of answer_checksum that is none of {', '.join(CHECKSUMS)}")
    if checksum.byte_order not in ("big", "little"):
        raise BrokenContractError("gave a byte_order of answer_checksum that is neither 'big' nor 'little'")
    name, value = checksum.request_header
    return replace(
        checksum,
        request_header=(_token(name, "a name in request_header"), line_in(value, "the value in request_header")),
        answer_header=_token(checksum.answer_header, "answer_header"),
        max_bytes=number_in(checksum.max_bytes, "max_bytes", 1, MOST_CHECKSUMMED_BYTES),
    )
