"""Plans which byte ranges to read, and which items lie in them. Pure: makes flat tables for the engine from values.

Wanted ranges of one object that lie close together become one span; the engine cuts spans into equal blocks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from streamer import _native

__all__ = ["Item", "ReadPlan", "plan_reads"]


class Item(NamedTuple):
    """One wanted byte range.

    Attributes:
        source: Index of the object.
        begin: First byte, in the object.
        end: Offset after the last byte.
        target: Address of the caller's own memory. If it is 0, the engine allocates memory, or requests it from the
            consumer.
        device: `streamer._native.HOST` for host memory that the engine allocates, CONSUMERS_HOST for host memory that
            it requests from the consumer, else the number of a CUDA device.
    """

    source: int
    begin: int
    end: int
    target: int = 0
    device: int = _native.HOST


Row: TypeAlias = tuple[int, int, int, int, int]  # one row of a table: the fields of an Item, in their order
ITEM_COLUMNS = len(Item._fields)
SPAN_COLUMNS = 5
NO_SPAN = -(2**31)  # neither an object's number nor a device's


@dataclass(frozen=True)
class ReadPlan:
    """The tables that the engine reads: rows of 64-bit numbers.

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

    @property
    def cuda_devices(self) -> set[int]:
        """Numbers of the CUDA devices that the engine copies items to."""
        return {device for device in set(self.items[ITEM_COLUMNS - 1 :: ITEM_COLUMNS]) if device >= 0}

    def item_rows(self) -> Iterator[Row]:
        """Yield the row of each item: ``source, begin, end, target, device``."""
        return zip(*(self.items[column::ITEM_COLUMNS] for column in range(ITEM_COLUMNS)), strict=True)

    def span_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield the range of each span: ``source, begin, end``."""
        return zip(*(self.spans[column::SPAN_COLUMNS] for column in range(3)), strict=True)

    def bytes_by_source(self) -> Counter[int]:
        """Return the bytes of the items of each object. Gaps are not counted: only gaps inside of a block are read."""
        bytes_of: Counter[int] = Counter()
        for source, begin, end, _, _ in self.item_rows():
            bytes_of[source] += end - begin
        return bytes_of


def plan_reads(items: Iterable[Row], coalesce_gap_bytes: int) -> ReadPlan:
    """Join neighbouring items of an object into spans, each for one device.

    Args:
        items: The items in reading order, each an `Item` or its five numbers. Items of one object must not overlap. An
            item that lies before its predecessor begins a new span. For an empty item nothing is read.
        coalesce_gap_bytes: Largest number of unwanted bytes between two items of one span.
    """
    listed = list(items)
    rows = array("q", list(chain.from_iterable(listed)))
    spans = array("q")
    span_bytes = first = last = span_begin = span_end = 0
    span_source = span_device = NO_SPAN
    for index, (source, begin, end, _, device) in enumerate(listed):
        if source == span_source and device == span_device:
            if begin == end >= span_end:
                continue  # an empty item is not read, and neither are the gaps around it
            if span_begin < span_end and 0 <= begin - span_end <= coalesce_gap_bytes:
                last, span_end = index, end
                continue
        span_bytes += _close(spans, (span_source, span_begin, span_end, first, last + 1 - first))
        first, last, span_source, span_begin, span_end, span_device = index, index, source, begin, end, device
    span_bytes += _close(spans, (span_source, span_begin, span_end, first, last + 1 - first))
    return ReadPlan(rows, spans, len(listed), sum(rows[2::ITEM_COLUMNS]) - sum(rows[1::ITEM_COLUMNS]), span_bytes)


def _close(spans: array[int], span: Row) -> int:
    """Append a finished span to the table, unless it is empty; return its length."""
    _, begin, end, _, _ = span
    if begin < end:
        spans.extend(span)
    return end - begin
