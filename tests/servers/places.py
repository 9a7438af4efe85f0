"""What a user writes to read from a server that plays a storage, or is none at all: a URL and its storage options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servers.scripted_http import ScriptedServer

__all__ = ["PLACES", "STORES", "Place", "azure", "base", "gcs", "hub", "s3", "web"]

Place = Callable[[ScriptedServer], tuple[str, dict[str, Any]]]


def _azure(url: str) -> tuple[str, dict[str, Any]]:
    connection = f"BlobEndpoint={url}/account;AccountName=account;AccountKey=Q0FOQVJZ"
    return "az://container/folder", {"connection_string": connection}


# Each is called with ``http://host:port``, and asks for a listing; "file" for the first byte.
PLACES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "file": lambda url: (f"{url}/a.safetensors", {}),
    "web": lambda url: (f"{url}/folder", {}),
    "s3": lambda url: ("s3://bucket/folder", {"key": "k", "secret": "s", "endpoint_url": url}),
    "gcs": lambda url: ("gs://bucket/folder", {"token": "anon", "endpoint_url": url}),
    "hub": lambda url: (f"hf://owner/name@{'a' * 40}", {"endpoint": url, "token": False}),
    "azure": _azure,
}


def base(server: ScriptedServer) -> str:
    """Return the server's URL without a path."""
    return server.url.removesuffix("/object")


def web(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A file of a web server."""
    return PLACES["file"](base(server))


def s3(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a bucket."""
    return PLACES["s3"](base(server))


def gcs(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a bucket that anyone may read."""
    return PLACES["gcs"](base(server))


def hub(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A repository at a commit, which needs no lookup of a branch."""
    return PLACES["hub"](base(server))


def azure(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a container."""
    return PLACES["azure"](base(server))


STORES: list[Place] = [s3, gcs, hub, azure]  # those with listings and documents of their own
