"""Parses Azure's answers: pages of listings, headers that describe a blob, lists of blocks. Pure."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from streamer.backends.client.answer_values import parse_size, parse_xml
from streamer.backends.client.exchange import Response

_OF_USER = "x-ms-meta-"


class Blob(NamedTuple):
    """A blob; of a folder in a listing, only the name, with a slash at its end."""

    name: str
    size: int | None = None
    etag: str | None = None
    metadata: Mapping[str, str] = {}
    kind: str | None = None
    md5: bytes = b""
    encoding: str = ""


def blob_of(answer: Response, name: str, uri: str) -> Blob:
    """Describe a blob by the answer to a HEAD."""
    headers = answer.headers
    length = headers.get("content-length")
    try:
        digest = b64decode(headers.get("content-md5", ""))
    except ValueError:
        digest = b""
    return Blob(
        name,
        None if length is None else parse_size(length, uri),
        headers.get("etag"),
        {each[len(_OF_USER) :]: value for each, value in headers.items() if each.startswith(_OF_USER)},
        headers.get("x-ms-blob-type"),
        digest,
        headers.get("content-encoding", ""),
    )


def page_of(document: bytes, uri: str) -> tuple[list[Blob], str | None] | None:
    """Return the blobs and folders of a page, and the mark of the next page; None if it is no such page."""
    root = parse_xml(document, "EnumerationResults")
    if root is None:
        return None
    blobs = []
    for each in root.iterfind("Blobs/*"):
        named = each.find("Name")
        name = "" if named is None else named.text or ""
        if named is not None and named.get("Encoded") == "true":  # it has characters that XML does not have
            name = unquote(name)
        length, etag = each.findtext("Properties/Content-Length"), each.findtext("Properties/Etag")
        metadata = {field.tag.lower(): field.text or "" for field in each.iterfind("Metadata/*")}
        blobs.append(Blob(name, None if length is None else parse_size(length, uri), etag, metadata))
    return blobs, root.findtext("NextMarker") or None


def blocks_of(document: bytes, uri: str) -> dict[str, int] | None:
    """Return the sizes of the blocks that are no part of a blob yet, by their ids in base 64; None if malformed."""
    root = parse_xml(document, "BlockList")
    if root is None:
        return None
    blocks = root.iterfind("UncommittedBlocks/Block")
    return {each.findtext("Name", ""): parse_size(each.findtext("Size"), uri) for each in blocks}
