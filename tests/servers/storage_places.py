"""What a user writes to read from a server that may be none of that storage's kind: a URL and its storage options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PLACES", "Place"]

Place = Callable[[str], tuple[str, dict[str, Any]]]


def _azure(base: str) -> tuple[str, dict[str, Any]]:
    connection = f"BlobEndpoint={base}/account;AccountName=account;AccountKey=Q0FOQVJZ"
    return "az://container/folder", {"connection_string": connection}


# Each is called with ``http://host:port``, and asks for a listing; "file" for the first byte.
PLACES: dict[str, Place] = {
    "file": lambda base: (f"{base}/a.safetensors", {}),
    "web": lambda base: (f"{base}/folder", {}),
    "s3": lambda base: ("s3://bucket/folder", {"key": "k", "secret": "s", "endpoint_url": base}),
    "gcs": lambda base: ("gs://bucket/folder", {"token": "anon", "endpoint_url": base}),
    "hub": lambda base: (f"hf://owner/name@{'a' * 40}", {"endpoint": base, "token": False}),
    "azure": _azure,
}
