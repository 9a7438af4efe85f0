"""What a group reads for one load: the windows, and the reads of this rank, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamer._group.parts import Part, bytes_between
from streamer._group.windows import Piece, Window, windows_of
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.engine.plan import Item, ReadPlan, plan_reads

__all__ = ["GroupReads", "OwnRead", "group_reads"]

READ_BYTES = 8 << 20  # bytes of one item: the largest block, so that one answer completes the item
# A load is split into at least 8 windows, so that reading one overlaps with exchanging another. Small loads have fewer.
TARGET_WINDOWS = 8
LEAST_WINDOW_BYTES = 4 << 20


class OwnRead(NamedTuple):
    """One read of this rank.

    Attributes:
        piece: What is read.
        is_shared: Whether other ranks may want bytes of the piece.
        is_whole: Whether the piece is exactly what this rank keeps of the tensor.
    """

    piece: Piece
    is_shared: bool
    is_whole: bool


@dataclass(frozen=True)
class GroupReads:
    """See the module's docstring.

    Attributes:
        parts: By rank and tensor, what is kept.
        windows: The windows, in their order.
        own: The reads of this rank, by window.
        plan: The same reads, for the engine.
        names: Names of the tensors that are read, by item of the plan.
    """

    parts: Sequence[Sequence[Part]]
    windows: Sequence[Window]
    own: Sequence[Sequence[OwnRead]]
    plan: ReadPlan
    names: Sequence[str]

    def of_rank(self, window: int, rank: int) -> Iterator[OwnRead]:
        """Yield the reads of any rank in a window, in their order."""
        return _own_reads(rank, self.parts, self.windows[window])

    def sizes_to_send(self, window: int, rank: int) -> list[int]:
        """Count the bytes of tensors that a rank sends to each other rank in a window."""
        sizes = [0] * len(self.parts)
        for tensor, begin, end in self.windows[window].stripe(rank, len(sizes)):
            for other, parts in enumerate(self.parts):
                if other != rank:
                    sizes[other] += bytes_between(parts[tensor], begin, end)
        return sizes


def group_reads(
    rank: int, parts: Sequence[Sequence[Part]], tensors: Sequence[ShardTensor], window_bytes: int
) -> GroupReads:
    """Plan the reads of one rank.

    Args:
        rank: Rank of this process.
        parts: By rank and tensor, what is kept.
        tensors: The whole tensors.
        window_bytes: Maximum number of bytes of a window.
    """
    total_bytes = sum(each.entry.end - each.entry.begin for each in tensors)
    window_bytes = min(window_bytes, max(LEAST_WINDOW_BYTES, total_bytes // TARGET_WINDOWS))
    windows = windows_of(parts, window_bytes)
    own = [list(_own_reads(rank, parts, window)) for window in windows]
    items, names = [], []
    for read in (read for reads in own for read in reads):
        tensor = tensors[read.piece.tensor]
        begin = tensor.entry.begin
        items.append(Item(tensor.shard, begin + read.piece.begin, begin + read.piece.end))
        names.append(tensor.entry.name)
    # Gaps are not read: their bytes are read by other ranks, or not wanted.
    return GroupReads(parts, windows, own, plan_reads(items, 0), names)


def _own_reads(rank: int, parts: Sequence[Sequence[Part]], window: Window) -> Iterator[OwnRead]:
    for owner, piece in window.own:
        if owner == rank:
            part = parts[rank][piece.tensor]
            is_whole = len(part) == 1 and part[0].number == 1 and (part[0].first, part[0].end) == piece[1:]
            yield OwnRead(piece, is_shared=False, is_whole=is_whole)
    for tensor, begin, end in window.stripe(rank, len(parts)):
        for at in range(begin, end, READ_BYTES):
            yield OwnRead(Piece(tensor, at, min(end, at + READ_BYTES)), is_shared=True, is_whole=False)
