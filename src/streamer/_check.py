"""Checks a checkpoint without reading its weights: headers, index against shards, and the manifest if there is one.

A load would refuse the same checkpoints, with the same errors. Bytes of tensors are not read: only a load with
``verify="manifest"`` compares them with the manifest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamer._checkpoint_headers import open_checkpoint
from streamer.core.encryption.keys import KeyOption
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError
from streamer.core.quoting import counted, size_text
from streamer.core.request.request import Request, StorageOptions

__all__ = ["CheckReport", "check"]


@dataclass(frozen=True)
class CheckReport:
    """The result of `check`.

    Attributes:
        uri: The URI of the checkpoint, without secrets.
        shards: Number of its shards.
        tensors: Number of its tensors.
        bytes: Bytes of these tensors.
        has_index: Whether an index named the shards.
        format: What the shards are: ``"safetensors"``, ``"PyTorch"``, ….
        manifest: ``"fits"``, ``"none"``, or ``"unreadable"`` if access to it is denied. If listing is denied, S3
            denies access also to a manifest that does not exist.
        remarks: The remarks of a load.
        seconds: Duration of the call.
    """

    uri: str
    shards: int
    tensors: int
    bytes: int
    has_index: bool
    manifest: str
    remarks: tuple[str, ...]
    seconds: float
    format: str = "safetensors"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        index = "the index names them" if self.has_index else "no index"
        manifests = {
            "fits": "the manifest fits",
            "none": "no manifest",
            "unreadable": "a manifest does not exist or may not be read",
        }
        found = f"{counted(self.shards, 'shard')}, {counted(self.tensors, 'tensor')}, {size_text(self.bytes)}"
        found = found if self.format == "safetensors" else f"{found} of {self.format}"
        return f"{self.uri}: {found}; headers are right, {index}, {manifests[self.manifest]}"


def check(uri: str, *, storage_options: StorageOptions = None, key: KeyOption = None) -> CheckReport:
    """Check a checkpoint.

    Args:
        uri: As for `streamer.load`.
        storage_options: As for `streamer.load`.
        key: As for `streamer.load`; headers are then authenticated, and tensors are not.

    Raises:
        StreamerError: as for `streamer.open`; if there is a manifest, as with ``verify="manifest"``.
    """
    began = time.monotonic()
    request = Request(uri=uri, storage_options=storage_options, key=key)
    checkpoint = open_checkpoint(request, any_format=True)
    entries = [each.entry for each in checkpoint.catalog.tensors.values()]
    return CheckReport(
        checkpoint.label,
        len(checkpoint.infos),
        len(entries),
        sum(each.end - each.begin for each in entries),
        checkpoint.index_path is not None,
        _manifest(request) if checkpoint.format_name == "safetensors" else "none",  # no other format has one
        tuple(checkpoint.remarks),
        time.monotonic() - began,
        checkpoint.format_name,
    )


def _manifest(request: Request) -> str:
    """Compare the manifest with the headers. The headers were read before, so only the manifest can be missing."""
    try:
        open_checkpoint(replace(request, verify="manifest"))
    except ObjectNotFoundError:
        return "none"
    except AccessDeniedError:
        return "unreadable"
    return "fits"
