"""A folder of three shards, as each storage lists it: one shard a page.

The shards are those of `one_file`, with other names of tensors, for a test whose server stands in for any storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from servers.one_file import COMMIT, DATA
from servers.scripted_http import Answer, Request

__all__ = ["LISTINGS", "PAGES", "SIZE", "is_listing", "shard"]

PAGES = 3
SIZE = len(DATA)


def shard(number: int) -> bytes:
    """The file, with other names of tensors of the same length."""
    return DATA.replace(b"weight", f"heavy{number}".encode()).replace(b"bias", f"bia{number}".encode())


def name_of(number: int) -> str:
    return f"m/{number}.safetensors"


# Each is called with the query of a request and the address of the server, and turns the answer into that page.


def _s3_page(query: dict[str, str], answer: Answer, _: str) -> None:
    number = int(query.get("continuation-token", "0"))
    following = f"<NextContinuationToken>{number + 1}</NextContinuationToken>" if number < PAGES - 1 else ""
    entry = f"<Key>{name_of(number)}</Key><Size>{SIZE}</Size><ETag>&quot;v1&quot;</ETag>"
    flag = f"<IsTruncated>{str(bool(following)).lower()}</IsTruncated>"
    document = f"<ListBucketResult>{flag}{following}<Contents>{entry}</Contents></ListBucketResult>"
    answer.become(200, document.encode(), Content_Type="application/xml")


def _gcs_page(query: dict[str, str], answer: Answer, _: str) -> None:
    number = int(query.get("pageToken", "0"))
    page: dict[str, Any] = {"items": [{"name": name_of(number), "size": str(SIZE), "generation": "7"}]}
    if number < PAGES - 1:
        page["nextPageToken"] = str(number + 1)
    answer.become(200, json.dumps(page).encode(), Content_Type="application/json")


def _azure_page(query: dict[str, str], answer: Answer, _: str) -> None:
    number = int(query.get("marker", "0"))
    facts = f"<Etag>v1</Etag><Content-Length>{SIZE}</Content-Length><BlobType>BlockBlob</BlobType>"
    blob = f"<Blob><Name>{name_of(number)}</Name><Properties>{facts}</Properties></Blob>"
    following = f"<NextMarker>{number + 1}</NextMarker>" if number < PAGES - 1 else "<NextMarker/>"
    document = f'<?xml version="1.0"?><EnumerationResults><Blobs>{blob}</Blobs>{following}</EnumerationResults>'
    answer.become(200, document.encode(), Content_Type="application/xml")


def _hub_page(query: dict[str, str], answer: Answer, url: str) -> None:
    number = int(query.get("cursor", "0"))
    entry = {"type": "file", "path": name_of(number), "size": SIZE, "oid": "0" * 40}
    answer.become(200, json.dumps([entry]).encode(), Content_Type="application/json")
    if number < PAGES - 1:
        answer.headers["Link"] = f'<{url}/api/models/owner/name/tree/{COMMIT}/m?cursor={number + 1}>; rel="next"'


LISTINGS: dict[str, Callable[[dict[str, str], Answer, str], None]] = {
    "s3": _s3_page,
    "gs": _gcs_page,
    "az": _azure_page,
    "hf": _hub_page,
}


def is_listing(request: Request) -> bool:
    path = urlsplit(request.path)
    is_hubs = "/tree/" in path.path
    return is_hubs or ("prefix" in parse_qs(path.query) and not path.path.endswith(".safetensors"))
