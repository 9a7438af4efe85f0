"""One server that stands in for any storage over HTTP, with one safetensors file: a test asks all of them alike.

It answers the lookups of S3, Google Cloud Storage, Azure and the Hub, and ranges of the file; a script of the test may
change each answer. What it cannot show: that the real ones answer in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import save

from servers.scripted_http import Answer, Request, Script, ScriptedServer

__all__ = ["DATA", "FILES", "TENSORS", "is_block", "is_lookup", "one_file", "place_of"]

TENSORS = {"weight": np.arange(60_000, dtype=np.float32), "bias": np.arange(7, dtype=np.int64)}
DATA = save(TENSORS)
COMMIT = "a" * 40
_FACTS = {
    "Last-Modified": "Thu, 26 Nov 2026 12:00:00 GMT",
    "x-goog-generation": "7",
    "x-ms-blob-type": "BlockBlob",
    "X-Repo-Commit": COMMIT,
}


def _azure(url: str) -> tuple[str, dict[str, Any]]:
    connection = f"BlobEndpoint={url}/account;AccountName=account;AccountKey=Q0FOQVJZ"
    return "az://container/a.safetensors", {"connection_string": connection}


# Each is called with ``http://host:port``, and gives a URL and storage options.
FILES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "s3": lambda url: ("s3://bucket/a.safetensors", {"key": "k", "secret": "s", "endpoint_url": url}),
    "gs": lambda url: ("gs://bucket/a.safetensors", {"token": "anon", "endpoint_url": url}),
    "az": _azure,
    "http": lambda url: (f"{url}/a.safetensors", {}),
    "hf": lambda url: (f"hf://owner/name@{COMMIT}/a.safetensors", {"endpoint": url, "token": False}),
}


def place_of(storage: str, server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """Return the URL of the file in a storage for which the server stands in, and its options."""
    return FILES[storage](server.url.removesuffix("/object"))


def one_file(change: Script | None = None, data: bytes = DATA, **how: Any) -> ScriptedServer:
    """Make the server, as `ScriptedServer` is made; `change` is called with each request and its right answer."""

    def script(request: Request, answer: Answer) -> None:
        if "/storage/v1/b/" in request.path and "/download/" not in request.path:
            document = {
                "name": request.path.partition("?")[0].rpartition("/")[2],
                "size": str(len(data)),
                "generation": "7",
            }
            answer.become(200, json.dumps(document).encode(), Content_Type="application/json")
        elif "range" not in request.headers:
            answer.status = 200
            del answer.headers["Content-Range"]
        answer.headers |= _FACTS
        if change is not None:
            change(request, answer)

    server = ScriptedServer(data, script, **how)
    server.answers_head = True
    return server


def is_lookup(request: Request) -> bool:
    """Say whether a request looks for the file, and does not read a part of it."""
    return not is_block(request)


def is_block(request: Request) -> bool:
    """Say whether a request reads a part of the file."""
    return request.headers.get("range", "bytes=0-0") != "bytes=0-0"
