"""What a page of an S3 listing says, as botocore hands it over. Pure.

Guarantees: what is taken has a name that can be asked for and a size that a file can have; else a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamer.backends.client.answer_values import parse_name, parse_size
from streamer.core.errors import StorageError

__all__ = ["ListedObject", "entries_on", "objects_on"]


class ListedObject(NamedTuple):
    """An object of a listing: its key, its size, and its ETag where that is told."""

    key: str
    size_bytes: int
    etag: str | None


def entries_on(page: Mapping[str, Any]) -> int:
    """Count what a page lists: objects, and the folders they lie in."""
    return len(page.get("Contents") or []) + len(page.get("CommonPrefixes") or [])


def objects_on(page: Mapping[str, Any], uri: str) -> list[ListedObject]:
    """Take the objects from a page, without those that consoles make as stand-ins for folders."""
    try:
        told = [
            ListedObject(parse_name(entry["Key"], uri), parse_size(entry["Size"], uri), entry.get("ETag") or None)
            for entry in page.get("Contents") or []
        ]
    except KeyError:
        raise StorageError("S3 lists an object without its name or size", uri=uri, hint="Check endpoint_url") from None
    return [each for each in told if not each.key.endswith("/")]
