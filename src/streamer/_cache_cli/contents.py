"""What the commands tell of a cache's objects, and what they remove."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamer import _native
from streamer._cache.folder import CacheFolder, Held
from streamer.core.secrets.redact import redact

__all__ = ["Content", "check", "contents", "is_named"]


@dataclass(frozen=True)
class Content:
    """One object of a cache.

    Attributes:
        uri: Its URI, without secrets; "" if its description is damaged.
        version: As its storage gave it.
        bytes: Its size.
        held_bytes: Of these, what the cache holds.
        disk_bytes: Bytes on the disk.
        used_at: Unix time when it was last used.
        key: The name of its folder.
    """

    uri: str
    version: str
    bytes: int
    held_bytes: int
    disk_bytes: int
    used_at: float
    key: str


def contents(folder: CacheFolder) -> list[Content]:
    """List the objects, those that were used last at the end.

    Raises:
        OSError: the folder cannot be read.
    """
    return [_content(folder, each) for each in folder.held()]


def is_named(content: Content, uri: str) -> bool:
    """Whether a URI names an object or a folder above it.

    Example:
        >>> is_named(Content("s3://b/m/a.safetensors", "1", 0, 0, 0, 0.0, ""), "s3://b/m")
        True
    """
    plain = redact(uri).rstrip("/")
    return bool(plain) and (content.uri == plain or content.uri.startswith(f"{plain}/"))


def check(folder: CacheFolder) -> Iterator[tuple[Content, int]]:
    """Read every object, and forget what is damaged; give each with the bytes that were.

    Raises:
        OSError: the folder cannot be read.
    """
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
    """Open an object without using it: it may be removed meanwhile, and its files are then read on."""
    if held.identity is None:
        return None
    try:
        return _native.CacheEntry(os.fsencode(folder.folder_of(held.identity)), held.identity.size_bytes)
    except OSError:  # it was removed
        return None
