"""Which byte ranges to read, and the items in them. Pure: values in, flat tables for the engine out.

Wanted ranges of one object that lie close together become one span; the engine cuts spans into equal blocks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from streamer import _native

__all__ = ["Item", "ReadPlan", "plan_reads"]


class Item(NamedTuple):
    """One wanted byte range.

    Attributes:
        source: Index of the object.
        begin: First byte, in the object.
        end: Byte after the last.
        target: Address of the caller's own memory, or 0: the engine allocates, or asks for it if it is on a device.
        device: `streamer._native.HOST` for memory of this machine that the engine allocates, CONSUMERS_HOST for such
            that it asks for, else the number of a CUDA device.
    """

    source: int
    begin: int
    end: int
    target: int = 0
    device: int = _native.HOST


ITEM_COLUMNS = len(Item._fields)
SPAN_COLUMNS = 5


@dataclass(frozen=True)
class ReadPlan:
    """Tables as the engine takes them: rows of 64-bit numbers.

    Attributes:
        items: ``source, begin, end, target, device`` per item, in their order.
        spans: ``source, begin, end, first_item, item_count`` per span.
        item_count: Number of items.
        item_bytes: Bytes of all items.
        span_bytes: Bytes that will be read, dropped gaps included.
    """

    items: array[int]
    spans: array[int]
    item_count: int
    item_bytes: int
    span_bytes: int

    @property
    def span_count(self) -> int:
        """Number of spans."""
        return len(self.spans) // SPAN_COLUMNS

    def bytes_by_source(self) -> Counter[int]:
        """Add up the items of each object; of the gaps in its spans, only those inside of a block are read."""
        bytes_of: Counter[int] = Counter()
        columns = (self.items[column::ITEM_COLUMNS] for column in range(3))
        for source, begin, end in zip(*columns, strict=True):
            bytes_of[source] += end - begin
        return bytes_of


def plan_reads(items: Iterable[Item], coalesce_gap_bytes: int) -> ReadPlan:
    """Join neighbouring items of an object into spans, each for one device.

    Args:
        items: In the order they shall be read; those of an object must not overlap. One that lies before its
            predecessor begins a span.
        coalesce_gap_bytes: Largest number of unwanted bytes between two items of one span.
    """
    rows = array("q")
    spans = array("q")
    item_bytes = span_bytes = 0
    index = -1
    device = _native.HOST  # of the open span
    open_span: list[int] | None = None  # source, begin, end, first item, item count
    for index, item in enumerate(items):
        rows.extend(item)
        item_bytes += item.end - item.begin
        is_near = open_span and item.source == open_span[0] and 0 <= item.begin - open_span[2] <= coalesce_gap_bytes
        if open_span and is_near and item.device == device:
            open_span[2] = item.end
            open_span[4] += 1
            continue
        span_bytes += _close(open_span, spans)
        device = item.device
        open_span = [item.source, item.begin, item.end, index, 1]
    span_bytes += _close(open_span, spans)
    return ReadPlan(rows, spans, index + 1, item_bytes, span_bytes)


def _close(span: list[int] | None, spans: array[int]) -> int:
    """Append a finished span to the table, unless it is empty; return its length."""
    if span is None or span[1] == span[2]:
        return 0
    spans.extend(span)
    return span[2] - span[1]
