"""Reads small byte ranges of many objects at once: headers and indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import Settings

__all__ = ["read_ranges"]


def read_ranges(
    objects: Sequence[SourceObject],
    ranges: Sequence[tuple[int, int, int]],
    settings: Settings,
    *,
    what: str = "ranges",
    on_read: Callable[[Sequence[int], Sequence[memoryview]], None] | None = None,
) -> tuple[list[memoryview], list[SourceObject]]:
    """Read ``(object index, begin, end)`` ranges, sorted by object.

    Args:
        objects: The objects to read from.
        ranges: The ranges to read.
        settings: How to read.
        what: The word for the ranges in messages.
        on_read: Called on this thread with the indexes of ranges that have just been read, and the bytes of all
            ranges so far.

    Returns:
        The bytes of each range, and the objects with the version of their answers: later reads are refused if an object
        has changed since. Later reads of an object request checksums only if each of its answers so far had one.

    Raises:
        StorageError: and its kinds, for the first range that cannot be read.
    """
    plan = plan_reads((Item(*wanted) for wanted in ranges), settings.coalesce_gap_bytes)
    session = ReadSession(objects, plan, settings, items=what)
    contents = [memoryview(b"")] * len(ranges)
    try:
        while items := session.next_items():
            for index, memory in zip(items, session.take_all(items), strict=True):
                if memory is not None:
                    contents[index] = memoryview(memory)
            if on_read is not None:
                on_read(items, contents)
        pinned = session.pinned()
    finally:
        settings.earlier.add(session.stats())
        session.close()
    return contents, pinned
