"""Turns requests for blocks of a stored tensor into runs of rows; each run is read as one range of bytes.

Rows that two requests share are read once. If a request is for whole rows and its destination is plain memory, they are
read directly into it. For any other request, its block is copied out of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import ReadItem

from streamer.core.checkpoint.tensor_slice import narrow
from streamer.core.errors import FormatError
from streamer.core.format.header import TensorEntry
from streamer.core.quoting import quoted
from streamer.integrations.dcp.destination import Destination
from streamer.integrations.dcp.object_reads import Part

__all__ = ["Rows", "Stored", "TensorJob", "block_of", "rows_of"]


class Stored(NamedTuple):
    """A tensor, or a chunk of one, in a file.

    Attributes:
        shard: Number of the file.
        entry: Its bytes in the file.
        shape: The shape of torch's tensor; it differs from the entry's if elements are packed.
        dtype: The dtype of torch's tensor.
    """

    shard: int
    entry: TensorEntry
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Rows(Part):
    """Rows of a tensor.

    Attributes:
        first: The number of the first row.
        requests: The requests whose blocks lie in these rows.
    """

    first: int = 0
    requests: list[ReadItem] = field(default_factory=list)

    def deliver(self, tensor: torch.Tensor, destination: Destination) -> None:
        """Copy the blocks of the requests to their destinations, unless they were read in place."""
        for request in self.requests:
            if self.target is not None:
                destination.commit(request, self.target)
            else:
                destination.fill(request, block_of(tensor, request, self.first))


class TensorJob:
    """All rows that a plan needs of one tensor in a safetensors file."""

    def __init__(self, rows: Sequence[Rows], destination: Destination) -> None:
        self.parts, self._destination = rows, destination

    def finish(self, tensors: list[Any]) -> None:
        """Deliver the rows."""
        for rows, tensor in zip(self.parts, tensors, strict=True):
            rows.deliver(tensor, self._destination)


def rows_of(stored: Stored, requests: Sequence[ReadItem], destination: Destination) -> list[Rows]:
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


def _rows(stored: Stored, first: int, end: int, requests: list[ReadItem], destination: Destination) -> Rows:
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
