"""Which bytes of a tensor a rank keeps, as runs of bytes: what one rank reads is so cut for each other rank.

Pure. The kept bytes of a part, one after the other, are in the order of the tensor's own bytes, as every part is a box
in a tensor whose last dimension varies fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.cuts import runs_of, starts_of
from streamer.core.format.dtypes import bits_of

__all__ = ["Part", "Runs", "bytes_before", "bytes_between", "clipped", "part_of", "size_of"]


class Runs(NamedTuple):
    """Equal runs of bytes at equal distances.

    Attributes:
        first: Offset of the first run, counted from the first byte of the tensor.
        length: Bytes of a run.
        stride: Bytes from the start of a run to that of the next.
        number: Number of runs.
    """

    first: int
    length: int
    stride: int
    number: int

    @property
    def end(self) -> int:
        """Offset of the byte after the last run."""
        return self.first + (self.number - 1) * self.stride + self.length

    def before(self, position: int) -> int:
        """Count the bytes of the runs that lie before an offset."""
        if position <= self.first:
            return 0
        run, inside = divmod(position - self.first, self.stride)
        return min(self.number * self.length, run * self.length + min(inside, self.length))

    def inside(self, begin: int, end: int) -> Iterator[Runs]:
        """Yield what lies between two offsets: at most a part of a run, whole runs, and a part of another run."""
        run = max(0, (begin - self.first - self.length) // self.stride + 1)
        last = min(self.number, -(-(end - self.first) // self.stride))
        while run < last:
            start = self.first + run * self.stride
            if start >= begin and start + self.length <= end:
                whole = min(last, (end - self.length - self.first) // self.stride + 1) - run
                yield Runs(start, self.length, self.stride, whole)
                run += whole
            else:
                low, high = max(begin, start), min(end, start + self.length)
                yield Runs(low, high - low, high - low, 1)
                run += 1


Part: TypeAlias = tuple[Runs, ...]  # in the order of their offsets, without overlaps; an empty part has no runs


def size_of(part: Part) -> int:
    """Count the bytes of a part."""
    return sum(runs.length * runs.number for runs in part)


def bytes_before(part: Part, position: int) -> int:
    """Count the bytes of a part that lie before an offset in its tensor."""
    return sum(runs.before(position) for runs in part)


def bytes_between(part: Part, begin: int, end: int) -> int:
    """Count the bytes of a part that lie between two offsets in its tensor."""
    return bytes_before(part, end) - bytes_before(part, begin)


def clipped(part: Part, begin: int, end: int) -> Iterator[Runs]:
    """Yield the runs of a part that lie between two offsets in its tensor, cut at these offsets."""
    for runs in part:
        if runs.first < end and begin < runs.end:
            yield from runs.inside(begin, end)


def part_of(wanted: ShardTensor, tensor_begin: int) -> Part:
    """Return the part that is kept of a tensor."""
    entry, cut = wanted.entry, wanted.cut
    begin, size_bytes = entry.begin - tensor_begin, entry.end - entry.begin
    if not size_bytes:
        return ()
    if cut is None:
        return (Runs(begin, size_bytes, size_bytes, 1),)
    bits = bits_of(entry.dtype)
    run, levels = runs_of(cut)
    count, stride = levels[0] if levels else (1, run)
    return tuple(
        Runs(begin + start * bits // 8, run * bits // 8, stride * bits // 8, count)
        for start in starts_of(cut, levels[1:])
    )
