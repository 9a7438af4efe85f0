"""What the Hub's answers say: a commit, the files of a folder, the next page. Pure.

Guarantees: an answer is what was asked for, or a `StorageError` that names the endpoint as the thing to check; the next
page is of the same origin.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urljoin

from streamer.backends.client.answer_values import parse_document, parse_name, parse_size
from streamer.backends.client.redirects import origin_of
from streamer.backends.hf.paths import COMMIT
from streamer.core.errors import StorageError

__all__ = ["HubFile", "commit_in", "entries_in", "files_in", "next_page"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')


class HubFile(NamedTuple):
    """A file of a commit: its name in its folder, its size, and its SHA-256 where the Hub knows it."""

    name: str
    size_bytes: int
    sha256: str | None


def commit_in(body: bytes, uri: str) -> str:
    """Read the answer about a revision."""
    told = _document(body, uri)
    commit = told.get("sha") if isinstance(told, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise StorageError("The answer names no commit", uri=uri, hint="Check the endpoint")
    return commit


def entries_in(body: bytes, uri: str) -> list[Any]:
    """Read a page of the listing of a folder, as far as it is one."""
    entries = _document(body, uri)
    if not isinstance(entries, list):
        raise _no_listing(uri)
    return entries


def files_in(entries: list[Any], folder: str, uri: str) -> list[HubFile]:
    """Take the files directly in a folder from a page."""
    try:
        files = [entry for entry in entries if entry["type"] == "file"]
        places = [parse_name(entry["path"], uri).rpartition("/") for entry in files]
        told = [(parse_size(entry["size"], uri), _sha256(entry)) for entry in files]
    except (AttributeError, KeyError, TypeError):
        raise _no_listing(uri) from None
    return [HubFile(name, *each) for (parent, _, name), each in zip(places, told, strict=True) if parent == folder]


def next_page(link: str, url: str, uri: str) -> str | None:
    """Read where the page after the one at `url` is, from the ``Link`` of its answer."""
    following = _NEXT.search(link)
    if following is None:
        return None
    try:
        found = urljoin(url, str(following[1]))
        is_same = origin_of(found) == origin_of(url)
    except ValueError:  # no port, half an address
        is_same = False
    if not is_same:
        raise StorageError("The Hub's listing leads astray", uri=uri, hint="Check the endpoint")
    return found


def _document(body: bytes, uri: str) -> Any:
    found = parse_document(body)
    if found is None:
        raise StorageError("The answer is not one of the Hub's", uri=uri, hint="Check the endpoint")
    return found


def _no_listing(uri: str) -> StorageError:
    return StorageError("The answer lists no files", uri=uri, hint="Check the endpoint")


def _sha256(entry: dict[str, Any]) -> str | None:
    """Files in LFS or Xet are named by their hash; small ones in Git itself have only Git's own."""
    told = (entry.get("lfs") or {}).get("oid")
    return str(told) if isinstance(told, str) and _SHA256.fullmatch(told) else None
