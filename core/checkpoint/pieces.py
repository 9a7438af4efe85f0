"""A part of a tensor that is read as several ranges: its runs of bytes are long, and far apart.

If fused experts (``[experts, out, in]``) are cut by `out`, each rank keeps a run of bytes of each expert. Only the runs
are read, not the bytes between them. If runs are short or close together, one range is read and the runs are cut out
of it, as `streamer.core.checkpoint.cuts` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.cuts import runs_of, starts_of
from streamer.core.format.dtypes import bits_of

__all__ = ["InPieces", "in_pieces"]

Range: TypeAlias = tuple[int, int]
LEAST_PIECE_BYTES = 64 << 10  # the requests for shorter pieces would cost more than the bytes between them


class InPieces(NamedTuple):
    """A tensor to hand out, and the ranges of its shard that are read for it.

    Attributes:
        wanted: The tensor. If it has several pieces, its bytes are theirs, one after the other; the end of its entry
            is then not an offset in the shard.
        pieces: The ranges, in order; one for most tensors.
    """

    wanted: ShardTensor
    pieces: Sequence[Range]


def in_pieces(wanted: ShardTensor, largest_gap_bytes: int) -> InPieces:
    """Divide what is read of a tensor into pieces, if that leaves out bytes that are not wanted.

    Args:
        wanted: The tensor or the part.
        largest_gap_bytes: Gaps of so many bytes are read, because another request takes longer.
    """
    entry, cut = wanted.entry, wanted.cut
    whole = InPieces(wanted, [(entry.begin, entry.end)])
    if cut is None:
        return whole
    run, levels = runs_of(cut)
    bits = bits_of(entry.dtype)
    run_bytes = run * bits // 8
    if not levels or run_bytes < LEAST_PIECE_BYTES or levels[0][1] * bits // 8 - run_bytes <= largest_gap_bytes:
        return whole
    begins = [entry.begin + start * bits // 8 for start in starts_of(cut, levels)]
    kept = entry._replace(shape=cut.kept, begin=begins[0], end=begins[0] + prod(cut.box) * bits // 8)
    return InPieces(wanted._replace(entry=kept, cut=None), [(begin, begin + run_bytes) for begin in begins])
