"""One checkpoint on every storage whose server can run here, and what a child process needs to load it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from comparison import tensors_of
from make_checkpoint import make_checkpoint
from servers.azurite import AzuriteServer
from servers.gcs_emulator import GcsServer
from servers.hub import TOKEN, HubServer
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer

__all__ = ["digests", "served"]

SIZE_BYTES = 4 << 20


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes, as the reference reads them."""
    return {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in tensors_of(folder).items()
    }


@contextmanager
def served(root: Path) -> Iterator[dict[str, Any]]:
    """Start the servers; give what ``child.py`` and ``hosts.py`` read from their standard input."""
    folder, room = root / "model", root / "room"
    room.mkdir()
    make_checkpoint(folder, total_bytes=SIZE_BYTES, shards=2)
    with ExitStack() as stack:
        s3 = stack.enter_context(SeaweedServer())
        gcs, azure = stack.enter_context(GcsServer()), stack.enter_context(AzuriteServer())
        hub, web = stack.enter_context(HubServer()), stack.enter_context(NginxServer(root))
        for make in (s3.make_bucket, gcs.make_bucket, azure.make_container):
            make("private")
        hub.upload_folder(folder, "ada/model")
        in_s3, options = s3.upload_folder(folder, "private", "model"), s3.storage_options()
        by_s3fs = {**options, "config_kwargs": {"s3": {"addressing_style": "path"}}}  # the plain path refuses it
        gcs_options = {"endpoint_url": gcs.endpoint_url, "token": gcs.service_account()}
        found = {
            "file": (str(folder), {}),
            "http": (f"{web.http_url}/open/model", {}),
            "s3": (in_s3, options),
            "s3 by s3fs": (in_s3, by_s3fs),
            "chained": (f"simplecache::{in_s3}", {"s3": options, "simplecache": {"cache_storage": "TMP"}}),
            "gs": (gcs.upload_folder(folder, "private", "model"), gcs_options),
            "az": (azure.upload_folder(folder, "private", "model"), azure.storage_options()),
            "hf": ("hf://ada/model", {"endpoint": hub.url, "token": TOKEN}),
        }
        yield {"places": found, "digests": digests(folder), "room": (str(room), f"{web.http_url}/open/room")}
