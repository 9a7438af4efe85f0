"""The ranges that one load wants of its objects, and which of them it has. Pure; not thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from streamer._node.grid import Range, without

__all__ = ["Wanted"]


class Wanted:
    """The bytes of one load.

    Args:
        ranges: Ranges that the load reads; they do not overlap within an object.
        takes_parts: Whether the ranges are only some tensors or parts, so that other loads probably want the rest.
    """

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
