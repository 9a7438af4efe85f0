"""The blocks of a checkpoint's objects, by number; which ranges of them a process wants, and which it has. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import TypeAlias

Range: TypeAlias = tuple[int, int, int]  # object, first byte, byte after the last
Hull: TypeAlias = tuple[int, int]  # wanted range of a block, as offsets in the object: first byte, byte after the last


class Grid:
    """Numbers the blocks of all objects, one object after the other."""

    def __init__(self, sizes: Sequence[int], block_bytes: int) -> None:
        self.sizes, self.block_bytes = sizes, block_bytes
        self._firsts = [0, *accumulate(-(-size // block_bytes) for size in sizes)]

    def __len__(self) -> int:
        return self._firsts[-1]

    def block(self, source: int, offset: int) -> int:
        """Return the number of the block that holds a byte of an object."""
        return self._firsts[source] + offset // self.block_bytes

    def place(self, block: int) -> Range:
        """Return the range of a block: its object, first byte, and the byte after the last."""
        source = bisect_right(self._firsts, block) - 1
        begin = (block - self._firsts[source]) * self.block_bytes
        return source, begin, min(begin + self.block_bytes, self.sizes[source])

    def pieces(self, ranges: Iterable[Range]) -> Iterator[tuple[int, Range]]:
        """Cut ranges at the borders of blocks: yield the number of a block, and the piece of a range in it."""
        for source, begin, end in ranges:
            borders = range(begin // self.block_bytes * self.block_bytes, end, self.block_bytes)
            for border in borders if begin < end else ():
                piece = source, max(begin, border), min(end, border + self.block_bytes)
                yield self.block(source, border), piece


def without(ranges: Iterable[Range], removed: Iterable[Range]) -> list[Range]:
    """Subtract ranges of several objects from others; return what is left, in order.

    Example:
        >>> without([(0, 0, 10), (1, 0, 5)], [(0, 2, 4), (1, 0, 5)])
        [(0, 0, 2), (0, 4, 10)]
    """
    gaps = sorted(removed)
    left: list[Range] = []
    at = 0
    for source, first, end in sorted(ranges):
        while at < len(gaps) and (gaps[at][0], gaps[at][2]) <= (source, first):
            at += 1
        begin = first
        for gap_source, gap_begin, gap_end in islice(gaps, at, None):
            if gap_source != source or gap_begin >= end:
                break
            if begin < gap_begin:
                left.append((source, begin, gap_begin))
            begin = max(begin, gap_end)
        if begin < end:
            left.append((source, begin, end))
    return left


class WantedBytes:
    """The bytes of one load."""

    def __init__(self, ranges: Iterable[Range], takes_parts: bool = False) -> None:
        self.takes_parts = takes_parts
        self._ranges = sorted(ranges)
        self._begins: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        self._sums: dict[int, list[int]] = {}
        self._had: list[Range] = []
        for source, begin, end in self._ranges:
            self._begins.setdefault(source, []).append(begin)
            self._ends.setdefault(source, []).append(end)
        for source, begins in self._begins.items():
            sizes = (end - begin for begin, end in zip(begins, self._ends[source], strict=True))
            self._sums[source] = [0, *accumulate(sizes)]

    def bytes_in(self, source: int, begin: int, end: int) -> int:
        """Count the wanted bytes in a range."""
        return self._bytes_before(source, end) - self._bytes_before(source, begin)

    def have(self, source: int, begin: int, end: int) -> None:
        """Note that the load has the bytes of a range."""
        if self._had and self._had[-1][0] == source and self._had[-1][2] == begin:
            self._had[-1] = source, self._had[-1][1], end
        else:
            self._had.append((source, begin, end))

    def missing(self) -> list[Range]:
        """Return the ranges that are still to be read."""
        return without(self._ranges, self._had)

    def _bytes_before(self, source: int, offset: int) -> int:
        begins = self._begins.get(source)
        if begins is None:
            return 0
        at = bisect_left(begins, offset)  # ranges that begin before it
        if not at:
            return 0
        return self._sums[source][at] - max(0, self._ends[source][at - 1] - offset)
