"""Cuts the missing bytes of files into pieces. A piece is written to the disk when all of it has arrived. Pure.

Guarantees: a piece has at most an eighth of the bytes before it, or 64 KiB. So if a pull is stopped, the incomplete
piece is a small part of the bytes that this run has read, on a slow line as on a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamer.core.engine.plan import Item

__all__ = ["LARGEST_BYTES", "SMALLEST_BYTES", "cut"]

SMALLEST_BYTES = 64 << 10  # a thousand of them cost some 50 ms of Python
LARGEST_BYTES = 8 << 20  # the largest block, so that a piece is complete with one answer
SHARE = 8


def cut(missing: Iterable[tuple[int, int]]) -> list[Item]:
    """Cut files into pieces; sizes are powers of two, and a piece ends at a multiple of its size, as blocks do.

    Args:
        missing: First byte and size of each file.

    Example:
        >>> [(each.begin, each.end) for each in cut([(1000, 100_000), (0, 10)])]
        [(1000, 65536), (65536, 100000), (0, 10)]
    """
    items, before = [], 0
    for number, (offset, size_bytes) in enumerate(missing):
        at = offset
        while at < size_bytes:
            piece_bytes = _power_of_two(min(max(before // SHARE, SMALLEST_BYTES), LARGEST_BYTES))
            end = min((at // piece_bytes + 1) * piece_bytes, size_bytes)
            items.append(Item(number, at, end))
            before, at = before + end - at, end
    return items


def _power_of_two(at_most: int) -> int:
    return 1 << (at_most.bit_length() - 1)
