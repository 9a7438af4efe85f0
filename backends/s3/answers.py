"""Parses a page of an S3 listing in botocore's form. Pure.

Guarantees: each object has a name that can be requested and a size that a file can have; otherwise a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamer.backends.client.answer_values import parse_name, parse_size
from streamer.core.errors import StorageError

__all__ = ["ListedObject", "count_of_entries", "names_in", "objects_in"]


class ListedObject(NamedTuple):
    """An object of a listing: its key, its size, and its ETag if the listing has one."""

    key: str
    size_bytes: int
    etag: str | None


def count_of_entries(page: Mapping[str, Any]) -> int:
    """Count the objects and folders of a page."""
    return len(page.get("Contents") or []) + len(page.get("CommonPrefixes") or [])


def objects_in(page: Mapping[str, Any], uri: str) -> list[ListedObject]:
    """Return the objects of a page, without the empty objects that consoles make to stand for folders."""
    try:
        objects = [
            ListedObject(parse_name(entry["Key"], uri), parse_size(entry["Size"], uri), entry.get("ETag") or None)
            for entry in page.get("Contents") or []
        ]
    except KeyError:
        raise StorageError("S3 lists an object without its name or size", uri=uri, hint="Check endpoint_url") from None
    return [each for each in objects if not each.key.endswith("/")]


def names_in(page: Mapping[str, Any], folder: str) -> list[str]:
    """Return the names of a page's objects within the folder, and the names of sub-folders with a slash at the end."""
    keys = [each.get("Key") for each in page.get("Contents") or []]
    folders = [each.get("Prefix") for each in page.get("CommonPrefixes") or []]
    return [str(each).removeprefix(folder) for each in (*folders, *keys) if each and each != folder]
