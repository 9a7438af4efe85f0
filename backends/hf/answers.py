"""Parses the Hub's answers: a commit, the files of a folder, the next page of a listing (RFC 8288). Pure.

Guarantees: the result is a value of the expected kind, or a `StorageError` with a hint to check the endpoint.

The next page is requested from the endpoint that the user named. A mirror may pass on the original link, which names
another host: if it leads to the same listing there, only its query is used. Refuses any other link to another server;
the error names both servers. Refuses a ``Link`` that cannot be parsed: it is not taken for the end of the listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from httplink import parse_link_header

from streamer.backends.client.answer_values import FOREIGN, parse_document, parse_name, parse_size
from streamer.backends.client.redirects import origin_of
from streamer.backends.hf.paths import COMMIT
from streamer.core.errors import StorageError

_SHA256 = re.compile(r"[0-9a-f]{64}")

_NEXT = "next"


class HubFile(NamedTuple):
    """A file of a commit, or of a bucket.

    Attributes:
        name: Its name in its folder.
        size_bytes: Its size.
        sha256: Its SHA-256, if the Hub has one.
        hash: In a bucket, its Xet hash. In a commit, Git's hash of it, or of what stands there for it in LFS.
    """

    name: str
    size_bytes: int
    sha256: str | None
    hash: str | None = None


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
        hashes = [entry.get("oid", entry.get("xetHash")) for entry in files]
        sizes = [(parse_size(entry["size"], uri), _sha256(entry)) for entry in files]
        values = [(*each, value) for each, value in zip(sizes, hashes, strict=True)]
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
    return StorageError("The answer lists no files", uri=uri, hint=f"{FOREIGN}: check the endpoint")


def _sha256(entry: dict[str, Any]) -> str | None:
    """Return the hash of a file in LFS or Xet; None for a small file in Git, which has only Git's own hash."""
    value = (entry.get("lfs") or {}).get("oid")
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else None


def next_page(links: Iterable[str], url: str, endpoint: str, uri: str) -> str | None:
    """Return the URL of the page after the one at `url`; None for the last page."""
    targets = {target for value in links for target in _next_targets(value, uri)}
    if not targets:
        return None
    if len(targets) > 1:
        raise StorageError("The Hub's listing names several next pages", uri=uri, hint="Check the endpoint")
    listing = urlsplit(url)
    try:
        target = urljoin(url, targets.pop())
        following, origin = urlsplit(target), origin_of(target)
    except ValueError:  # a malformed port or address
        raise _leads_elsewhere("a malformed address", endpoint, uri) from None
    api_path = unquote(listing.path.removeprefix(urlsplit(endpoint).path))
    if following.scheme in ("http", "https") and unquote(following.path).endswith(api_path):
        return listing._replace(query=following.query).geturl()
    if origin != origin_of(url):
        raise _leads_elsewhere(f"{origin[0]}://{origin[1]}:{origin[2]}", endpoint, uri)
    return target


def _next_targets(value: str, uri: str) -> list[str]:
    """Return the targets of the links whose relation is ``next`` in one header."""
    try:
        links = parse_link_header(value).links
    except ValueError:
        hint = "Check the endpoint, and the proxies on the way to it: RFC 8288 defines this header"
        raise StorageError(
            "The Hub's listing has a Link header that cannot be parsed, so that a page may be missing",
            uri=uri,
            hint=hint,
        ) from None
    return [link.target for link in links if _NEXT in _relations(link.attributes)]


def _relations(attributes: Iterable[tuple[str, str]]) -> set[str]:
    """Return the relations of a link: the first ``rel`` counts, and some proxies write it in single quotes."""
    relation = next((value for name, value in attributes if name.lower() == "rel"), "")
    return set(relation.strip("'").lower().split())


def _leads_elsewhere(where: str, endpoint: str, uri: str) -> StorageError:
    return StorageError(
        f"The listing of {endpoint} leads to another server, {where}, which gets no request",
        uri=uri,
        hint="Set HF_ENDPOINT (or the option endpoint) to a Hub that lists all pages itself, or name the index or the "
        "files: hf://owner/name/model.safetensors.index.json",
    )
