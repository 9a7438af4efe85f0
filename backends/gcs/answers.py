"""Parses objects and pages of listings of Google Cloud Storage's JSON API. Pure.

Guarantees: each object has a name that can be requested and a size that a file can have; otherwise a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamer.backends.client.answer_values import parse_name, parse_size, parse_word
from streamer.core.errors import StorageError

__all__ = ["DescribedObject", "names_in", "object_in", "page_in"]


class DescribedObject(NamedTuple):
    """An object: its name, its size, and its generation if the answer has one."""

    name: str
    size_bytes: int
    generation: str | None


def page_in(document: Mapping[str, Any], uri: str) -> tuple[list[Any], str | None]:
    """Return the entries of a page, and the token of the next page."""
    entries, token = document.get("items", []), document.get("nextPageToken")
    if not isinstance(entries, list) or not isinstance(document.get("prefixes", []), list):
        raise _malformed(uri)
    if not (token is None or isinstance(token, str)):
        raise _malformed(uri)
    if token and not token.isascii():  # lone surrogates, for example, cannot be sent back
        raise _malformed(uri)
    return entries, token or None


def names_in(document: Mapping[str, Any], folder: str) -> list[str]:
    """Return the names of a page's objects within the folder, and the names of sub-folders with a slash at the end."""
    names = [str(each.get("name")) for each in document.get("items", [])]
    return [name.removeprefix(folder) for name in (*map(str, document.get("prefixes", [])), *names) if name != folder]


def object_in(entry: object, uri: str) -> DescribedObject:
    """Parse the entry of one object."""
    if not isinstance(entry, dict) or "name" not in entry or "size" not in entry:
        raise _malformed(uri)
    generation = parse_word(str(entry.get("generation") or ""))
    return DescribedObject(parse_name(entry["name"], uri), parse_size(entry["size"], uri), generation)


def _malformed(uri: str) -> StorageError:
    message = "The answer describes no object of Google Cloud Storage"
    return StorageError(message, uri=uri, hint="Check endpoint_url")
