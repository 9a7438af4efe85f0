"""What two loads must have in common to share: the same objects in the same versions, at the same place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from streamer.core.engine.session import SourceObject
from streamer.core.store.sources import HttpSource, NfsSource

__all__ = ["is_shareable", "key_of"]

PROTOCOL = 1  # version of the messages, the book and the shared memory
_KEY_DIGITS = 40  # the name of a socket has at most 107 bytes


def is_shareable(each: SourceObject) -> bool:
    """Whether an object is on a network and its version is known; the page cache shares the bytes of mounted files."""
    return _version_of(each) != ""


def key_of(objects: Sequence[SourceObject]) -> str:
    """Return a digest of a checkpoint's objects, in their order; it reveals no URL and no secret."""
    described = [[each.uri, each.size_bytes, _version_of(each) or "", _place_of(each)] for each in objects]
    return hashlib.sha256(json.dumps([PROTOCOL, described]).encode("utf-8", "replace")).hexdigest()[:_KEY_DIGITS]


def _version_of(each: SourceObject) -> str:
    if isinstance(each.source, HttpSource):
        if each.source.version_header is None:  # the URL names one version
            return urlsplit(each.source.url).path
        return each.version or each.source.version or ""
    return each.version if isinstance(each.source, NfsSource) else ""


def _place_of(each: SourceObject) -> str:
    """Name the server, as several may have the same bucket; signatures and redirects differ by process."""
    if isinstance(each.source, HttpSource) and not each.source.is_redirect:
        parts = urlsplit(each.source.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return ""
