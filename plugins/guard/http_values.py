r"""Checks the values of a plug-in that become part of requests: URLs, headers, versions. Pure.

Guarantees: every result is text for at most one line of a request: it holds no CR, LF or NUL, which would end a header
and begin another header or request. Refuses headers that decide where a request or its answer ends. No message shows a
value, because it may be a secret.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamer.core.quoting import quoted
from streamer.core.store.digests import CHECKSUMS
from streamer.core.store.sources import AnswerChecksum, HttpSource
from streamer.plugins.guard.answers import number_in, text_in
from streamer.plugins.guard.plugin import BrokenContractError, kind_of

__all__ = ["checked_http", "line_in", "path_in"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_URL = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
_OF_THE_ENGINE = frozenset({"content-length", "if-range", "range", "transfer-encoding"})
MOST_CHECKSUMMED_BYTES = 1 << 40  # more than any range; Azure's servers send checksums of at most 4 MiB


def checked_http(source: HttpSource) -> HttpSource:
    """Return the source as a plain value of checked parts; `refresh` stays unchanged.

    Raises:
        BrokenContractError: a part has another type than documented, or cannot be sent.
    """
    if not _URL.match(line_in(source.url, "url")) or any(letter.isspace() for letter in source.url):
        raise BrokenContractError("gave a url that is no http:// or https:// URL with its spaces quoted")
    if source.refresh is not None and not callable(source.refresh):
        raise BrokenContractError(f"gave {kind_of(source.refresh)} as refresh, which is a function or None")
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
    """Return a path as text.

    Raises:
        BrokenContractError: it is no path.
    """
    if value is None and may_be_none:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise BrokenContractError(f"gave {kind_of(value)} as {what}, which is a path without NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise BrokenContractError(f"gave {what} with half a character, which no path of this system has") from None
    return path


def _headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise BrokenContractError(f"gave {kind_of(headers)} as headers, which is a mapping of names to values")
    checked: dict[str, str] = {}
    for name in headers:
        _token(name, "the name of a header")
        if name.lower() in _OF_THE_ENGINE:
            raise BrokenContractError(f"gave a header {quoted(name)}, which the engine sets itself")
        checked[name] = line_in(headers[name], f"the header {quoted(name)}")
    return checked


def line_in(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    """Return a text if it fits into one line of a request.

    Raises:
        BrokenContractError: it does not.
    """
    text = text_in(value, what, may_be_none=may_be_none)
    if text is None:
        return None
    position = next((place for place, letter in enumerate(text) if letter in "\r\n\0"), None)
    if position is not None:
        raise BrokenContractError(f"gave {what} with a CR, LF or NUL at position {position}, which would end it there")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BrokenContractError(f"gave {what} with half a character, which cannot be sent") from None
    return str(text)


def _token(value: Any, what: str, *, may_be_none: bool = False) -> Any:
    text = text_in(value, what, may_be_none=may_be_none)
    if text is not None and not _TOKEN.fullmatch(text):
        raise BrokenContractError(f"gave {what} that is no token: letters, digits and !#$%&'*+.^_`|~- alone")
    return text


def _time(value: Any) -> float | None:
    if value is None:
        return None
    try:
        time_s = float(value)
    except (TypeError, ValueError):
        time_s = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(time_s):
        raise BrokenContractError(f"gave {kind_of(value)} as expires_at_s, which is a Unix time in seconds or None")
    return time_s


def _checksum(checksum: Any) -> AnswerChecksum | None:
    if checksum is None:
        return None
    if not isinstance(checksum, AnswerChecksum):
        raise BrokenContractError(f"gave {kind_of(checksum)} as answer_checksum, which is an AnswerChecksum")
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
