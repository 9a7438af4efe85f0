"""Checks a checkpoint: headers, index against shards, the manifest if there is one, and in full also every tensor.

A load would refuse the same checkpoints, with the same errors. Bytes of tensors are read only in full, and none is
kept: memory stays within the limit of the load. With a key they are then authenticated; else they are compared with
the manifest, or with the digests that the storage keeps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamer._checkpoint_headers import OpenedCheckpoint, open_checkpoint, pinned
from streamer._progress import Progress
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.sealed_catalog import seal_plan
from streamer.core.encryption.keys import KeyOption
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError
from streamer.core.quoting import counted, printable, size_text
from streamer.core.request.request import ProgressOption, Request, StorageOptions
from streamer.core.verification.strategy import VerifyOption


def read_in_full(checkpoint: OpenedCheckpoint, progress: ProgressOption = None) -> Sequence[ObjectCheck]:
    """Read all tensors of a checkpoint; return what was compared, object by object."""
    catalog, settings = checkpoint.catalog, checkpoint.settings
    wanted = list(catalog.in_file_order())
    verification = checkpoint.verification(wanted)
    items = (Item(each.shard, each.entry.begin, each.entry.end) for each in wanted)
    plan = plan_reads(items, settings.coalesce_gap_bytes)
    with Progress(progress, plan.span_bytes, checkpoint.label) as shown:
        session = ReadSession(
            catalog.shards,
            plan,
            settings,
            in_item_order=verification is not None and verification.needs_order,
            on_progress=shown.update,
            on_wait=shown.note,
            digests=verification.digests if verification else None,
            name_of=lambda item: wanted[item].entry.name,
            seals=seal_plan(catalog, plan),
        )
        with closing(session):
            while finished := session.next_items():
                for item in finished:
                    memory = session.take(item)
                    if verification is not None:
                        data = None if memory is None else memoryview(memory)
                        verification.take(item, data, session.digest_pieces)
            return verification.checks(session.compares_answers) if verification else ()


READ = {
    "key": "every byte was authenticated",
    "manifest": "every byte was compared with the manifest",
    "storage": "every byte was compared with the digests of the storage",
    "nothing": "every byte was read, and there are no digests to compare all of them with",
}


@dataclass(frozen=True)
class CheckReport:
    """The result of `check`."""

    uri: str  # the URI of the checkpoint, without secrets
    shards: int  # number of its shards
    tensors: int  # number of its tensors
    bytes: int  # bytes of these tensors
    has_index: bool  # whether an index named the shards
    # ``"fits"``, ``"none"``, or ``"unreadable"`` if access to it is denied. If listing is denied, S3 denies access also
    # to a manifest that does not exist.
    manifest: str
    remarks: tuple[str, ...]  # the remarks of a load
    seconds: float  # duration of the call
    format: str = "safetensors"  # what the shards are: ``"safetensors"``, ``"PyTorch"``, …
    # What every byte of the tensors was compared with, if all were read: ``"key"``, ``"manifest"``, ``"storage"``, or
    # ``"nothing"`` if there is no digest of all objects. None if they were not read.
    read: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON; the remarks say if nothing was compared, as the text does."""
        remarks = (*self.remarks, READ["nothing"]) if self.read == "nothing" else self.remarks
        return {**asdict(self), "remarks": remarks}

    def __str__(self) -> str:
        index = "the index names them" if self.has_index else "no index"
        manifests = {
            "fits": "the manifest fits",
            "none": "no manifest",
            "unreadable": "a manifest does not exist or may not be read",
        }
        found = f"{counted(self.shards, 'shard')}, {counted(self.tensors, 'tensor')}, {size_text(self.bytes)}"
        found = found if self.format == "safetensors" else f"{found} of {self.format}"
        told = f"{self.uri}: {found}; headers are right, {index}, {manifests[self.manifest]}"
        told = told if self.read is None else f"{told}; {READ[self.read]}"
        return told + "".join(f"; note: {printable(each)}" for each in self.remarks)


def check(
    uri: str,
    *,
    storage_options: StorageOptions = None,
    key: KeyOption = None,
    context: str | None = None,
    in_full: bool = False,
    progress: ProgressOption = None,
) -> CheckReport:
    """Check a checkpoint; raises as `streamer.open` does, and as with ``verify="manifest"`` if there is a manifest."""
    began = time.monotonic()
    request = pinned(Request(uri=uri, storage_options=storage_options, key=key, context=context))
    checkpoint = open_checkpoint(request, any_format=True)
    entries = [each.entry for each in checkpoint.catalog.tensors.values()]
    manifest = _manifest(request) if checkpoint.format_name == "safetensors" else "none"  # no other format has one
    read = _read(replace(request, progress=progress), manifest) if in_full else None
    return CheckReport(
        checkpoint.label,
        len(checkpoint.infos),
        len(entries),
        sum(each.end - each.begin for each in entries),
        checkpoint.index_path is not None,
        manifest,
        tuple(checkpoint.remarks),
        time.monotonic() - began,
        checkpoint.format_name,
        read,
    )


def _read(request: Request, manifest: str) -> str:
    """Read all tensors, and say what they were compared with."""
    if request.key is not None:
        read_in_full(open_checkpoint(request, uses_cache=False, any_format=True), request.progress)
        return "key"
    verify: VerifyOption = "manifest" if manifest == "fits" else "auto"
    checkpoint = open_checkpoint(replace(request, verify=verify), uses_cache=False, any_format=True)
    checks = read_in_full(checkpoint, request.progress)
    is_compared = all(each.verified_by for each in checks)
    return "nothing" if not is_compared else "manifest" if manifest == "fits" else "storage"


def _manifest(request: Request) -> str:
    """Compare the manifest with the headers. The headers were read before, so only the manifest can be missing."""
    try:
        open_checkpoint(replace(request, verify="manifest"))
    except ObjectNotFoundError:
        return "none"
    except AccessDeniedError:
        return "unreadable"
    return "fits"
