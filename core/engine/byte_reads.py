"""Reads byte ranges straight into new ``bytes`` objects, or into the caller's memory: nothing is copied on the way."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import Settings

__all__ = ["address_of", "read_bytes", "read_into"]

# The C API can make ``bytes`` with uninitialised content, which the caller fills before any other code sees them. In
# Python itself, new ``bytes`` are always a copy of a value.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def read_bytes(
    objects: Sequence[SourceObject], ranges: Sequence[tuple[int, int, int]], settings: Settings
) -> tuple[list[bytes], list[SourceObject]]:
    """Read ``(object index, begin, end)`` ranges, in any order; bytes that several ranges share are read once.

    Args:
        objects: The objects to read from.
        ranges: The ranges to read, inside of the objects.
        settings: How to read.

    Returns:
        The bytes of each range, and the objects with the version that their answers had, as `read_ranges` does.

    Raises:
        StorageError: and its kinds, for the first range that cannot be read.
    """
    joined = list(_without_overlaps(ranges))
    contents = [_new_bytes(None, end - begin) for _, begin, end in joined]
    items = [Item(*each, address_of(content)) for each, content in zip(joined, contents, strict=True)]
    pinned = _read(objects, items, settings, contents)
    found = []
    for source, begin, end in ranges:
        if begin == end:
            found.append(b"")
            continue
        at = bisect_right(joined, (source, begin, 1 << 63)) - 1
        skipped = begin - joined[at][1]
        found.append(contents[at][skipped : skipped + end - begin])  # no copy if the slice is the whole content
    return found, pinned


def read_into(
    source_object: SourceObject,
    begin: int,
    buffer: memoryview,
    settings: Settings,
    on_end: Callable[[Mapping[str, int]], None] | None = None,
) -> SourceObject:
    """Fill the caller's memory from an offset; return the object with the version that its answers had.

    Args:
        source_object: The object to read from.
        begin: Offset of the first byte in the object.
        buffer: Writable and contiguous memory. A view prevents its owner from resizing it while it is filled.
        settings: How to read.
        on_end: Called with the engine's counters.

    Raises:
        StorageError: and its kinds.
    """
    item = Item(0, begin, begin + buffer.nbytes, address_of(buffer))
    return _read([source_object], [item], settings, buffer, on_end)[0]


def _without_overlaps(ranges: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Sort ranges, join overlapping ranges, and leave out empty ranges."""
    open_range: tuple[int, int, int] | None = None
    for source, begin, end in sorted(each for each in set(ranges) if each[1] < each[2]):
        if open_range and open_range[0] == source and begin < open_range[2]:
            open_range = (source, open_range[1], max(end, open_range[2]))
            continue
        if open_range:
            yield open_range
        open_range = (source, begin, end)
    if open_range:
        yield open_range


def address_of(memory: bytes | memoryview) -> int:
    """Return the address of the first byte of the memory."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _read(
    objects: Sequence[SourceObject],
    items: Sequence[Item],
    settings: Settings,
    targets: object,
    on_end: Callable[[Mapping[str, int]], None] | None = None,
) -> list[SourceObject]:
    if not items:
        return list(objects)
    plan = plan_reads(items, settings.coalesce_gap_bytes)
    session = ReadSession(objects, plan, settings, keep_alive=targets, items="ranges")
    try:
        while arrived := session.next_items():
            session.take_all(arrived)
        if on_end is not None:
            on_end(session.stats())
        return session.pinned()
    finally:
        session.close()
