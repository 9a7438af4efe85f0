"""Who reads which bytes for a group, and in which order: windows, whose bytes are exchanged together.

Pure: all ranks make the same windows from the same parts. Each wanted byte is read by exactly one rank. What only one
rank wants, it reads itself. What several want is put in a row, and each rank reads an equal stripe of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.engine.plan import Item, ReadPlan, plan_reads
from streamer.core.group.assembly import Part, bytes_between

STRIPE_STEP_BYTES = 64 << 10  # a smaller request takes as long
LEAST_OWN_BYTES = 256 << 10  # for a shorter range, a separate request takes longer than the exchange


class Piece(NamedTuple):
    """A range of bytes of one tensor."""

    tensor: int
    begin: int  # offset of the first byte in the tensor
    end: int  # offset of the byte after the last


class Window(NamedTuple):
    """What is read and exchanged together."""

    shared: tuple[Piece, ...]  # pieces that several ranks want, in a row
    own: tuple[tuple[int, Piece], ...]  # pieces that only one rank wants, each after the number of that rank
    complete: tuple[int, ...]  # numbers of the tensors that are complete after this window, in order

    @property
    def shared_bytes(self) -> int:
        """Bytes of the shared pieces."""
        return sum(piece.end - piece.begin for piece in self.shared)

    def stripe(self, rank: int, ranks: int) -> Iterator[Piece]:
        """Yield the parts of the shared pieces that a rank reads."""
        step_bytes = -(-self.shared_bytes // (ranks * STRIPE_STEP_BYTES)) * STRIPE_STEP_BYTES
        first, last, at = rank * step_bytes, (rank + 1) * step_bytes, 0
        for piece in self.shared:
            begin, end = piece.begin + max(0, first - at), min(piece.end, piece.begin + last - at)
            if begin < end:
                yield Piece(piece.tensor, begin, end)
            at += piece.end - piece.begin


def windows_of(parts: Sequence[Sequence[Part]], window_bytes: int) -> list[Window]:
    """Divide what the ranks of a group want into windows."""
    ranks = len(parts)
    found, window = list[Window](), _OpenWindow()
    for tensor, of_ranks in enumerate(zip(*parts, strict=True)):
        for begin, end, owner in _segments(of_ranks):
            if owner is not None:
                window.own.append((owner, Piece(tensor, begin, end)))
                window.own_bytes += end - begin
                continue
            at = begin
            while at < end:
                taken = min(end - at, window_bytes - window.shared_bytes)
                window.shared.append(Piece(tensor, at, at + taken))
                window.shared_bytes += taken
                at += taken
                if window.shared_bytes == window_bytes and at < end:
                    found.append(window.closed())
                    window = _OpenWindow()
        window.complete.append(tensor)
        if window.shared_bytes == window_bytes or window.shared_bytes + window.own_bytes // ranks >= window_bytes:
            found.append(window.closed())
            window = _OpenWindow()
    return [*found, window.closed()] if window.complete else found


class _OpenWindow:
    def __init__(self) -> None:
        self.shared: list[Piece] = []
        self.own: list[tuple[int, Piece]] = []
        self.complete: list[int] = []
        self.shared_bytes = self.own_bytes = 0

    def closed(self) -> Window:
        return Window(tuple(self.shared), tuple(self.own), tuple(self.complete))


def _segments(parts: Sequence[Part]) -> Iterator[tuple[int, int, int | None]]:
    """Divide the wanted bytes of one tensor: begin, end, and the only rank that wants them, or None."""
    wanted = [(rank, part[0].first, part[-1].end) for rank, part in enumerate(parts) if part]
    if not wanted:
        return
    is_cut = any(len(part) > 1 or (part and part[0].number > 1) for part in parts)
    if is_cut and len(wanted) > 1:  # other ranks want the bytes between the runs of one rank
        yield min(begin for _, begin, _ in wanted), max(end for *_, end in wanted), None
        return
    bounds = sorted({bound for _, *both in wanted for bound in both})
    shared: tuple[int, int] | None = None
    for begin, end in pairwise(bounds):
        owners = [rank for rank, low, high in wanted if low <= begin and end <= high]
        is_own = len(owners) == 1 and end - begin >= LEAST_OWN_BYTES
        if owners and not is_own:
            shared = (shared[0] if shared else begin), end
            continue
        if shared:
            yield (*shared, None)
            shared = None
        if is_own:
            yield begin, end, owners[0]
    if shared:
        yield (*shared, None)


READ_BYTES = 8 << 20  # bytes of one item: the largest block, so that one answer completes the item
# A load is split into at least 8 windows, so that reading one overlaps with exchanging another. Small loads have fewer.
TARGET_WINDOWS = 8
LEAST_WINDOW_BYTES = 4 << 20


class OwnRead(NamedTuple):
    """One read of this rank."""

    piece: Piece  # what is read
    is_shared: bool  # whether other ranks may want bytes of the piece
    is_whole: bool  # whether the piece is exactly what this rank keeps of the tensor


@dataclass(frozen=True)
class GroupReads:
    """See the module's docstring."""

    parts: Sequence[Sequence[Part]]  # by rank and tensor, what is kept
    windows: Sequence[Window]  # the windows, in their order
    own: Sequence[Sequence[OwnRead]]  # the reads of this rank, by window
    plan: ReadPlan  # the same reads, for the engine
    names: Sequence[str]  # names of the tensors that are read, by item of the plan

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
    """Plan the reads of one rank."""
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
