"""Parses the Hub's answers: a commit, the files of a folder. Pure.

Guarantees: the result is a value of the expected kind, or a `StorageError` with a hint to check the endpoint.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from streamer.backends.client.answer_values import parse_document, parse_name, parse_size
from streamer.backends.hf.paths import COMMIT
from streamer.core.errors import StorageError

__all__ = ["HubFile", "commit_in", "entries_in", "files_in", "names_in"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubFile(NamedTuple):
    """A file of a commit: its name in its folder, its size, and its SHA-256 if the Hub has one."""

    name: str
    size_bytes: int
    sha256: str | None


def commit_in(body: bytes, uri: str) -> str:
    """Parse the answer to a request for a revision."""
    document = _document(body, uri)
    commit = document.get("sha") if isinstance(document, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise StorageError("The answer names no commit", uri=uri, hint="Check the endpoint")
    return commit


def entries_in(body: bytes, uri: str) -> list[Any]:
    """Parse a page of the listing of a folder into its entries."""
    entries = _document(body, uri)
    if not isinstance(entries, list):
        raise _no_listing(uri)
    return entries


def files_in(entries: list[Any], folder: str, uri: str) -> list[HubFile]:
    """Return the files directly in a folder from the entries of a page."""
    try:
        files = [entry for entry in entries if entry["type"] == "file"]
        places = [parse_name(entry["path"], uri).rpartition("/") for entry in files]
        values = [(parse_size(entry["size"], uri), _sha256(entry)) for entry in files]
    except (AttributeError, KeyError, TypeError):
        raise _no_listing(uri) from None
    return [HubFile(name, *each) for (parent, _, name), each in zip(places, values, strict=True) if parent == folder]


def names_in(entries: list[Any]) -> list[str]:
    """Return the names of the files and folders of a page; names of folders end in a slash."""
    return [str(each["path"]).rpartition("/")[2] + "/" * (each["type"] == "directory") for each in entries]


def _document(body: bytes, uri: str) -> Any:
    document = parse_document(body)
    if document is None:
        raise StorageError("The answer is not one of the Hub's", uri=uri, hint="Check the endpoint")
    return document


def _no_listing(uri: str) -> StorageError:
    return StorageError("The answer lists no files", uri=uri, hint="Check the endpoint")


def _sha256(entry: dict[str, Any]) -> str | None:
    """Return the hash of a file in LFS or Xet; None for a small file in Git, which has only Git's own hash."""
    value = (entry.get("lfs") or {}).get("oid")
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else None
