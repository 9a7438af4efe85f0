"""A checkpoint of safetensors in the form of torch.distributed.checkpoint: tensors in chunks, each in a shard.

If torch's `HuggingFaceStorageWriter` wrote the shards by rank, their headers say which part of each tensor they hold.
In any other shard, tensors are whole. Refuses parts that do not fill their tensor: then a shard is missing, and torch
would leave the rest of the tensor as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from streamer.core.checkpoint.catalog import SAVED_OFFSETS, SHARDING_INFO, check_index, read_headers
from streamer.core.checkpoint.report import LoadReport
from streamer.core.encryption.sealed_files import refuse_encrypted
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import FormatError
from streamer.core.format.dcp_metadata import SavedChunk
from streamer.core.format.header import Header
from streamer.core.format.header_entries import TensorEntry
from streamer.core.options.settings import Settings
from streamer.core.other_formats.dcp import chunks_overlap
from streamer.core.quoting import names_text, quoted
from streamer.core.shards.search import shards_in
from streamer.core.shards.shards import Shards, duplicate_tensor
from streamer.core.store.sources import Store
from streamer.core.tensors.frameworks import framework_of
from streamer.integrations.dcp.object_reads import Job, Objects, Stored, TensorJob, read_jobs, rows_of
from streamer.integrations.dcp.planned_targets import PlannedTargets
from streamer.integrations.dcp.torch_metadata import metadata_of_tensor, metadata_of_tensors
from streamer.integrations.library_calls import Location


def tensor_files_in(store: Store, location: Location, settings: Settings) -> TensorFiles:
    """Open a checkpoint of safetensors."""
    shards = shards_in(store, location.uri, settings)
    headers, _, objects = read_headers(shards.objects, settings)
    for header, each in zip(headers, objects, strict=True):
        refuse_encrypted(header.metadata, [entry.name for entry in header.entries], each.uri)
    return TensorFiles(_chunks(shards, headers, objects), objects, location.label)


class TensorFiles:
    """A checkpoint of safetensors."""

    def __init__(
        self, chunks: Mapping[str, Mapping[tuple[int, ...], Stored]], objects: list[SourceObject], label: str
    ) -> None:
        self.chunks, self._objects, self.label = chunks, objects, label

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """Return torch's metadata of each tensor."""
        return {name: self._tensor(name, stored) for name, stored in self.chunks.items()}

    def metadata(self, load_id: str) -> Metadata:
        """Return the checkpoint's metadata."""
        return metadata_of_tensors(self.tensors(), load_id, self.label)

    def read(self, plan: LoadPlan, destination: PlannedTargets, location: Location, settings: Settings) -> LoadReport:  # noqa: ARG002  of `Found`
        """Read the rows of a plan."""
        return self.read_jobs(self.jobs(plan.items, destination), settings)

    def jobs(self, requests: Iterable[ReadItem], destination: PlannedTargets) -> list[Job]:
        """Return the jobs of some requests."""
        grouped: dict[tuple[str, tuple[int, ...]], list[ReadItem]] = {}
        for request in requests:
            offset = tuple(request.storage_index.offset or ())
            grouped.setdefault((request.storage_index.fqn, offset), []).append(request)
        jobs: list[Job] = []
        for (name, offset), wanted in grouped.items():
            stored = self.stored(name, offset)
            rows = rows_of(stored, wanted, destination)
            jobs.append(TensorJob(rows, destination))
        return jobs

    def stored(self, name: str, offset: tuple[int, ...]) -> Stored:
        """Return a chunk."""
        chunk = self.chunks.get(name, {}).get(offset)
        if chunk is None:
            raise FormatError(
                f"the checkpoint holds no part of {quoted(name)} at {list(offset)}",
                uri=self.label,
                hint="The load plan was made for another checkpoint",
            )
        return chunk

    def read_jobs(self, jobs: Iterable[Job], settings: Settings) -> LoadReport:
        """Read and finish jobs."""
        return read_jobs(jobs, Objects(self.label, self._objects, settings))

    def _tensor(self, name: str, stored: Mapping[tuple[int, ...], Stored]) -> TensorStorageMetadata:
        chunks = [SavedChunk(offsets, each.shape) for offsets, each in stored.items()]
        dtype, *others = {each.dtype for each in stored.values()}
        metadata = metadata_of_tensor(chunks, dtype)
        placed = [_Placed(each.offsets, each.sizes) for each in chunks if prod(each.sizes)]
        if len(placed) > 1 and chunks_overlap(placed, tuple(metadata.size)):
            raise _of_two_saves(name, sorted({self._objects[each.shard].uri for each in stored.values()}))
        if others or sum(prod(each.sizes) for each in chunks) != prod(metadata.size):
            raise FormatError(
                f"the parts of tensor {quoted(name)} do not form a tensor of shape {list(metadata.size)}",
                uri=self.label,
                hint="A shard of some rank is missing: upload them all, or name one complete checkpoint",
            )
        return metadata


class _Placed(NamedTuple):
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def _of_two_saves(name: str, uris: Sequence[str]) -> FormatError:
    """Return the error for parts that overlap: one save divides a tensor, and each save divides it in its own way."""
    return FormatError(
        f"the parts of tensor {quoted(name)} overlap in {names_text(uris)}",
        uri=uris[0],
        hint="Some are left of an earlier save to this folder, in another sharding: remove the older files,"
        " or save to an empty folder",
    )


def _chunks(
    shards: Shards, headers: list[Header], objects: list[SourceObject]
) -> dict[str, dict[tuple[int, ...], Stored]]:
    library = framework_of("pt")
    choice = shards.choice
    found: dict[str, dict[tuple[int, ...], Stored]] = {}
    by_rank = set[int]()
    for shard, header in enumerate(headers):
        uri = objects[shard].uri
        offsets = _saved_offsets(header, uri)
        by_rank |= {shard} if offsets is not None else set()
        for entry in header.entries:
            if choice.overrules(entry.name, shard):
                continue
            shape = library.shape(entry)
            begins = (0,) * len(shape) if offsets is None else _offsets_of(entry, len(shape), offsets, uri)
            chunks = found.setdefault(entry.name, {})
            same = [each for at, each in chunks.items() if at == begins or len(at) != len(begins) or offsets is None]
            if same and offsets is not None and same[0].shard in by_rank:
                raise _of_two_saves(entry.name, [objects[same[0].shard].uri, uri])
            if same:
                raise duplicate_tensor(entry.name, objects[same[0].shard].uri, uri)
            chunks[begins] = Stored(shard, entry, shape, library.dtype(entry))
    check_index(found, choice, objects)
    return found


def _saved_offsets(header: Header, uri: str) -> Mapping[str, Any] | None:
    """Return the sharding information of torch's writer in a header; None for any other shard."""
    text = (header.metadata or {}).get(SHARDING_INFO)
    if text is None:
        return None
    try:
        sharding_info = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{SHARDING_INFO} in the header is no JSON", uri=uri, hint="Save it again") from error
    if not isinstance(sharding_info, dict):
        raise FormatError(f"{SHARDING_INFO} in the header is no JSON object", uri=uri, hint="Save it again")
    return sharding_info


def _offsets_of(entry: TensorEntry, rank: int, sharding_info: Mapping[str, Any], uri: str) -> tuple[int, ...]:
    part = sharding_info.get(entry.name)
    offsets = part.get(SAVED_OFFSETS) if isinstance(part, dict) else None
    is_list = isinstance(offsets, list) and len(offsets) == rank
    if not is_list or not all(type(each) is int and 0 <= each < 1 << 63 for each in offsets or ()):
        raise FormatError(
            f"the header does not say which part of tensor {quoted(entry.name)} this is", uri=uri, hint="Save it again"
        )
    return tuple(offsets or ())
