"""Where a scripted server is a storage: a URL, and the options that lead its client there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servers.scripted_http import ScriptedServer

__all__ = ["STORES", "Place", "azure", "base", "gcs", "hub", "s3", "web"]

Place = Callable[[ScriptedServer], tuple[str, dict[str, Any]]]


def base(server: ScriptedServer) -> str:
    """Return the server's URL without a path."""
    return server.url.removesuffix("/object")


def web(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A file of a web server."""
    return f"{base(server)}/a.safetensors", {}


def s3(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a bucket."""
    return "s3://bucket/folder", {"key": "k", "secret": "s", "endpoint_url": base(server)}


def gcs(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a bucket that anyone may read."""
    return "gs://bucket/folder", {"token": "anon", "endpoint_url": base(server)}


def hub(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A repository at a commit, which needs no lookup of a branch."""
    return f"hf://owner/name@{'a' * 40}", {"endpoint": base(server), "token": False}


def azure(server: ScriptedServer) -> tuple[str, dict[str, Any]]:
    """A folder of a container."""
    connection = f"BlobEndpoint={base(server)}/account;AccountName=account;AccountKey=Q0FOQVJZ"
    return "az://container/folder", {"connection_string": connection}


STORES: list[Place] = [s3, gcs, hub, azure]  # those with listings and documents of their own
