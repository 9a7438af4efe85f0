"""Finds the checkpoint at a URL: one of DCP, or one of safetensors.

Refuses a folder without a checkpoint, and files of DCP without ``.metadata``: this file is written last, so their save
was not finished.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan

from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.small_files import read_files
from streamer.core.errors import AccessDeniedError, ObjectNotFoundError
from streamer.core.format.dcp_metadata import parse_dcp_metadata
from streamer.core.format.shard_names import is_of_checkpoint
from streamer.core.options.settings import Settings
from streamer.core.store.presence import enumerated
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.dcp.destination import Destination
from streamer.integrations.dcp.saved_checkpoint import SavedCheckpoint
from streamer.integrations.dcp.tensor_files import tensor_files_in
from streamer.integrations.library_calls import Location

__all__ = ["Found", "checkpoint_in"]

METADATA = ".metadata"
DATA_SUFFIX = ".distcp"


class Found(Protocol):
    """A checkpoint whose metadata were read."""

    def metadata(self, load_id: str) -> Metadata:
        """Return the metadata in torch's classes."""

    def read(self, plan: LoadPlan, destination: Destination, location: Location, settings: Settings) -> LoadReport:
        """Read the items of a plan."""


def checkpoint_in(store: Store, location: Location, settings: Settings, rank: int | None = None) -> Found:
    """Find the checkpoint."""
    root = store.root.rstrip("/")
    names = [METADATA] if rank is None else [f"__{rank}{METADATA}", METADATA]
    if is_of_checkpoint(root):
        return tensor_files_in(store, location, settings)
    listed = _listed(store, root, names)
    for name in names:
        if name in listed:
            info = listed[name]
            (content,) = read_files(store, [info], settings)
            return SavedCheckpoint(parse_dcp_metadata(content, uri=info.uri), listed, location.label)
    _check_finished(listed, names[0], location)
    return tensor_files_in(store, location, settings)


def _listed(store: Store, root: str, names: list[str]) -> dict[str, ObjectInfo]:
    """List the folder; if listing is forbidden, look up only the metadata."""
    try:
        return {info.path.rpartition("/")[2]: info for info in store.find(root or "/")}
    except AccessDeniedError:
        listed = {}
        for name in names:
            with suppress(AccessDeniedError, ObjectNotFoundError):
                listed[name] = store.info(f"{root}/{name}" if root else name)
        return listed


def _check_finished(listed: dict[str, ObjectInfo], name: str, location: Location) -> None:
    names = sorted(listed)
    if any(map(is_of_checkpoint, names)):
        return
    by_rank = [each for each in names if each.endswith(METADATA)]
    if any(each.endswith(DATA_SUFFIX) for each in names) and not by_rank:
        hint = "Its save was not finished, or its upload lacks hidden files, which belong to it, too"
    elif by_rank:
        hint = f"Each process saved its own part: there is {enumerated(by_rank)}"
    else:
        hint = "Check the URL; a checkpoint is a folder with .metadata, or with *.safetensors"
    if names:
        raise ObjectNotFoundError(f"the folder holds no {name}, but {enumerated(names)}", uri=location.label, hint=hint)
