"""Reads the ranges of a load plan in one session of the engine, and delivers them job by job.

A job has the ranges of one item of the checkpoint, which are read together and finished together. Guarantees: all
ranges of all jobs are one read of the engine, and neighbours are joined. Ranges arrive in the order of the jobs, so
only one job is in memory beside the engine's own buffers. Jobs are finished on the caller's thread.

Requests for blocks of a stored tensor become runs of rows; each run is one range of bytes. Rows that two requests share
are read once. If a request is for whole rows and its destination is plain memory, they are read directly into it. For
any other request, its block is copied out of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.checkpoint.planner import ReadItem

from streamer._checkpoint_headers import OpenedCheckpoint, opened_cache
from streamer._stream import Stream
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.lazy_tensor import narrow
from streamer.core.checkpoint.report import LoadReport
from streamer.core.checkpoint.targets import match_targets
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import FormatError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.shards.shards import Shards
from streamer.core.tensors.frameworks import framework_of
from streamer.core.tensors.target_states import count_changes
from streamer.integrations.dcp.planned_targets import PlannedTargets


@dataclass(frozen=True)
class Objects:
    """The objects to read from."""

    label: str  # the checkpoint, for messages
    objects: Sequence[SourceObject]  # the files; `ObjectRange.shard` is an index of this list
    settings: Settings


@dataclass
class ObjectRange:
    """One range of an object."""

    shard: int
    entry: TensorEntry
    # A plain contiguous tensor of the same shape and dtype, which the engine fills; None for a new tensor.
    target: torch.Tensor | None = None


class Job(Protocol):
    """Ranges of one item of the checkpoint."""

    @property
    def parts(self) -> Sequence[ObjectRange]:
        """The ranges, at least one, in the order in which they are read."""

    def finish(self, tensors: list[Any]) -> None:
        """Deliver the tensors of the parts, in their order; the tensors are freed after this call."""


def read_jobs(jobs: Iterable[Job], where: Objects) -> LoadReport:
    """Read and finish all jobs."""
    ordered = sorted(jobs, key=_position)
    parts = [part for job in ordered for part in job.parts]
    _keep_apart(parts)
    wanted = [ShardTensor(part.shard, entry) for part, entry in zip(parts, _uniquely_named(parts), strict=True)]
    placed = {each.entry.name: part.target for part, each in zip(parts, wanted, strict=True) if part.target is not None}
    library = framework_of("pt")
    _, targets = match_targets([each for each in wanted if each.entry.name in placed], placed, library)
    try:
        opened = _opened(where)
        with Stream(opened, wanted, library, None, targets=targets, order="file", progress=False) as stream:
            for job in ordered:
                job.finish([_filled(next(stream)[1], part.target) for part in job.parts])
            next(stream, None)  # ends the stream, and checks that everything was delivered
        targets.states.check_unchanged()
    finally:
        targets.lock.release()
        count_changes(placed.values())
    return stream.report


def _position(job: Job) -> tuple[int, int]:
    return job.parts[0].shard, job.parts[0].entry.begin


def _filled(tensor: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
    """Return the target, or the tensor if there is no target; copy into a target that the engine has not filled."""
    if target is None:
        return tensor
    if tensor.data_ptr() != target.data_ptr():
        target.copy_(tensor)
    return target


def _keep_apart(parts: Sequence[ObjectRange]) -> None:
    """Prevent the engine from filling bytes twice: of targets that share memory, it fills only the first."""
    reach: dict[torch.device, int] = {}
    placed = [part for part in parts if part.target is not None and part.target.nbytes]
    for part in sorted(placed, key=lambda part: part.target.data_ptr()):  # type: ignore[union-attr]  # filtered above
        target = part.target
        assert target is not None
        begin = target.data_ptr()
        if begin < reach.get(target.device, 0):
            part.target = None
        else:
            reach[target.device] = begin + target.nbytes


def _uniquely_named(parts: Sequence[ObjectRange]) -> list[TensorEntry]:
    """Return entries with unique names: the engine's results are identified by name, and a tensor may have several."""
    taken = {part.entry.name for part in parts}
    counts: dict[str, int] = {}
    entries = []
    for part in parts:
        name = part.entry.name
        number = counts.get(name, 0) + 1
        unique = name if number == 1 else f"{name} ({number})"
        while number > 1 and unique in taken:
            number += 1
            unique = f"{name} ({number})"
        taken.add(unique)
        counts[name] = number
        entries.append(part.entry._replace(name=unique))
    return entries


def _opened(where: Objects) -> OpenedCheckpoint:
    shards = Shards(where.label, list(where.objects), None, [])
    cache = opened_cache(where.objects, where.settings)
    return OpenedCheckpoint(shards, Catalog(cache.objects, {}, {}), where.settings, {}, None, cache=cache)


class Stored(NamedTuple):
    """A tensor, or a chunk of one, in a file."""

    shard: int
    entry: TensorEntry
    shape: tuple[int, ...]  # of torch; it differs from the entry's if elements are packed
    dtype: torch.dtype


@dataclass
class Rows(ObjectRange):
    """Rows of a tensor."""

    first: int = 0
    requests: list[ReadItem] = field(default_factory=list)

    def deliver(self, tensor: torch.Tensor, destination: PlannedTargets) -> None:
        """Copy the blocks of the requests to their destinations, unless they were read in place."""
        for request in self.requests:
            if self.target is not None:
                destination.commit(request, self.target)
            else:
                destination.fill(request, block_of(tensor, request, self.first))


class TensorJob:
    """All rows that a plan needs of one tensor in a safetensors file."""

    def __init__(self, rows: Sequence[Rows], destination: PlannedTargets) -> None:
        self.parts, self._destination = rows, destination

    def finish(self, tensors: list[Any]) -> None:
        """Deliver the rows."""
        for rows, tensor in zip(self.parts, tensors, strict=True):
            rows.deliver(tensor, self._destination)


def rows_of(stored: Stored, requests: Sequence[ReadItem], destination: PlannedTargets) -> list[Rows]:
    """Return the rows that requests need of one stored tensor."""
    groups: list[tuple[int, int, list[ReadItem]]] = []
    for request in sorted(requests, key=_first_row):
        _check_inside(request, stored.shape)
        first = _first_row(request)
        end = first + (request.lengths[0] if stored.shape else 1)
        if groups and first < groups[-1][1]:
            before, last, others = groups.pop()
            groups.append((before, max(last, end), [*others, request]))
        else:
            groups.append((first, end, [request]))
    return [_rows(stored, *group, destination) for group in groups]


def block_of(tensor: torch.Tensor, request: ReadItem, first_row: int = 0) -> torch.Tensor:
    """Return the block of a request, as a view of the rows of a tensor."""
    begins = list(request.storage_offsets)
    if begins:
        begins[0] -= first_row
    return tensor[tuple(slice(begin, begin + size) for begin, size in zip(begins, request.lengths, strict=True))]


def _first_row(request: ReadItem) -> int:
    return request.storage_offsets[0] if request.storage_offsets else 0


def _rows(stored: Stored, first: int, end: int, requests: list[ReadItem], destination: PlannedTargets) -> Rows:
    entry, shape = stored.entry, stored.shape
    cut = narrow(entry, (slice(first, end),))[0] if shape else entry
    if cut.shape == entry.shape:  # all rows are read: they are wanted, or rows share bytes
        first, there = 0, shape
    else:
        there = (end - first, *shape[1:])
    is_whole = len(requests) == 1 and tuple(requests[0].lengths) == there
    target = destination.in_place(requests[0], there, stored.dtype) if is_whole else None
    return Rows(stored.shard, cut, target, first, requests)


def _check_inside(request: ReadItem, shape: tuple[int, ...]) -> None:
    ends = [begin + size for begin, size in zip(request.storage_offsets, request.lengths, strict=False)]
    if len(request.lengths) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
        raise FormatError(
            f"the load plan wants {list(request.lengths)} at {list(request.storage_offsets)} of"
            f" {quoted(request.storage_index.fqn)}, which is stored as {list(shape)}",
            hint="The metadata belong to another checkpoint",
        )
