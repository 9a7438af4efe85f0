"""Reads small byte ranges of many objects at once: headers and indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import Settings
from streamer.core.store.sources import HttpSource, NfsSource

__all__ = ["read_ranges"]


def read_ranges(
    objects: Sequence[SourceObject],
    ranges: Sequence[tuple[int, int, int]],
    settings: Settings,
    *,
    what: str = "ranges",
    on_read: Callable[[Sequence[int], Sequence[memoryview]], None] | None = None,
    needed_bytes: Callable[[memoryview], int] | None = None,
) -> tuple[list[memoryview], list[SourceObject]]:
    """Read ``(object index, begin, end)`` ranges, sorted by object.

    Args:
        objects: The objects to read from.
        ranges: The ranges to read.
        settings: How to read.
        what: The word for the ranges in messages.
        on_read: Called on this thread with the indexes of ranges that have just been read, and the bytes of all
            ranges so far.
        needed_bytes: Counts the bytes at the beginning of a range that other processes need, too; they may get no
            others. None if they need all.

    Returns:
        The bytes of each range, and the objects with the version of their answers: later reads are refused if an object
        has changed since. Later reads of an object request checksums only if each of its answers so far had one.

    Raises:
        StorageError: and its kinds, for the first range that cannot be read.
    """
    findings = settings.findings if _may_be_found(objects) else None
    named = [(what, objects[index].server, objects[index].identity, begin, end) for index, begin, end in ranges]
    known = findings.recall_ranges(named, are_cut=needed_bytes is not None) if findings else None
    if known is not None:
        contents, versions = known
        if on_read is not None:
            on_read(range(len(ranges)), contents)
        version_of = {index: version for (index, *_), version in zip(ranges, versions, strict=True)}
        return contents, [replace(each, version=version_of.get(i, each.version)) for i, each in enumerate(objects)]
    contents, pinned = _read(objects, ranges, settings, what, on_read)
    if findings:
        cut = [each if needed_bytes is None else each[: needed_bytes(each)] for each in contents]
        findings.note_ranges(named, cut, [pinned[index].version for index, _, _ in ranges])
    return contents, pinned


def _may_be_found(objects: Sequence[SourceObject]) -> bool:
    """Whether identity and version of each object name the same bytes for each process, and each read compares them."""
    return all(isinstance(each.source, (HttpSource, NfsSource)) and each.identity for each in objects)


def _read(
    objects: Sequence[SourceObject],
    ranges: Sequence[tuple[int, int, int]],
    settings: Settings,
    what: str,
    on_read: Callable[[Sequence[int], Sequence[memoryview]], None] | None,
) -> tuple[list[memoryview], list[SourceObject]]:
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
