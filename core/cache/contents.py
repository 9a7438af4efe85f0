"""The objects that a cache holds: their description, a check of their bytes, and which of them a URI names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamer import _native
from streamer.core.cache.folder import CacheFolder, Held
from streamer.core.secrets.redact import KEY_SCHEMES, redact

_SIGNED = re.compile(r"[?&](?:sig|[\w-]*Signature)=|://[^/]*:[^/]*@")


@dataclass(frozen=True)
class Content:
    """One object of a cache."""

    uri: str  # URI of the object, without secrets; "" if the description of the object is damaged
    version: str  # version of the object, as its storage names it
    bytes: int  # size of the object
    held_bytes: int  # how many of these bytes the cache holds
    disk_bytes: int  # bytes that the object occupies on the disk
    used_at: float  # unix time when the object was last used
    key: str  # name of the object's folder in the cache


def contents(folder: CacheFolder) -> list[Content]:
    """List the objects; the most recently used one comes last."""
    return [_content(folder, each) for each in folder.held()]


def is_named(content: Content, uri: str) -> bool:
    """Whether a URI names an object or a folder above it; a ``?`` is part of a key, unless a signature follows.

    Example:
        >>> cached = Content("s3://b/m/a.safetensors", "1", 0, 0, 0, 0.0, "")
        >>> [is_named(cached, f"s3://b/m{rest}") for rest in ("", "/a.safetensors", "/a.safetensors?x")]
        [True, True, False]
    """
    is_name = uri.partition("://")[0].lower() in KEY_SCHEMES and not _SIGNED.search(uri)
    plain = (uri.replace("?generation=", "#") if is_name else redact(uri)).rstrip("/")
    return bool(plain) and (content.uri == plain or content.uri.startswith(f"{plain}/"))


def check(folder: CacheFolder) -> Iterator[tuple[Content, int]]:
    """Read every object, and drop its damaged parts; yield each object with the number of damaged bytes."""
    for each in folder.held():
        content = _content(folder, each)
        entry = _entry(folder, each)
        yield content, entry.check() if entry else 0


def _content(folder: CacheFolder, held: Held) -> Content:
    identity, entry = held.identity, _entry(folder, held)
    return Content(
        uri=identity.uri if identity else "",
        version=identity.version if identity else "",
        bytes=identity.size_bytes if identity else 0,
        held_bytes=entry.held_bytes() if entry else 0,
        disk_bytes=held.disk_bytes,
        used_at=held.used_at,
        key=held.key,
    )


def _entry(folder: CacheFolder, held: Held) -> Any:
    """Open an object without a lock. Another process may remove it meanwhile; its open files can still be read."""
    if held.identity is None:
        return None
    try:
        return _native.CacheEntry(os.fsencode(folder.folder_of(held.identity)), held.identity.size_bytes)
    except OSError:  # it was removed
        return None
