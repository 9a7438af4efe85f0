"""Reads bytes instead of tensors: ranges of one object, small ranges of many objects at once, or an object to its end.

Nothing is copied on the way to new ``bytes`` objects, or to the caller's memory. Headers and indexes are small ranges.

An object that is read to its end, in order, is read ahead by one session with its connections while the caller takes
piece by piece. The bytes that are read ahead are bounded. Closing, an error or garbage collection stops the reading, as
for every `ReadSession`.

Items may be put together from several ranges each. Such a session takes the place of a `ReadSession`, with the same
guarantees: an item is handed out once, when all its ranges are there. Ranges are held by the engine, within its memory
limit, until they are copied to the memory of their item.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamer import _native
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, ReadPlan, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import LoadCancelledError
from streamer.core.options.settings import Settings
from streamer.core.store.sources import HttpSource, NfsSource

# The C API can make ``bytes`` with uninitialised content, which the caller fills before any other code sees them. In
# Python itself, new ``bytes`` are always a copy of a value.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def read_bytes(
    objects: Sequence[SourceObject], ranges: Sequence[tuple[int, int, int]], settings: Settings
) -> tuple[list[bytes], list[SourceObject]]:
    """Read ``(object index, begin, end)`` ranges, in any order; bytes that several ranges share are read once.

    Returns:
        The bytes of each range, and the objects with the version that their answers had, as `read_ranges` does.
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
    """Fill the caller's memory from an offset; return the object with the version that its answers had."""
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
    contents, pinned = _read_all(objects, ranges, settings, what, on_read)
    if findings:
        cut = [each if needed_bytes is None else each[: needed_bytes(each)] for each in contents]
        findings.note_ranges(named, cut, [pinned[index].version for index, _, _ in ranges])
    return contents, pinned


def _may_be_found(objects: Sequence[SourceObject]) -> bool:
    """Whether identity and version of each object name the same bytes for each process, and each read compares them."""
    return all(isinstance(each.source, (HttpSource, NfsSource)) and each.identity for each in objects)


def _read_all(
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


PIECE_BYTES = 8 << 20  # the largest block, so that a piece is complete with one answer
# Several blocks for each of two reactors; this is the most memory that one file with a slow consumer may hold. More is
# not faster on a connection of 5 GB/s; a path of 50 Gbit/s and 50 ms would need 300 MiB.
AHEAD_BYTES = 128 << 20


class ByteStream:
    """A stream of the bytes of one object from an offset on.

    Attributes:
        position: Offset of the next byte.
    """

    def __init__(self, source_object: SourceObject, begin: int, settings: Settings, *, in_order: bool = True) -> None:
        self._begins = range(begin, source_object.size_bytes, PIECE_BYTES)
        size_bytes = source_object.size_bytes
        items = (Item(0, at, min(at + PIECE_BYTES, size_bytes)) for at in self._begins)
        limit_bytes = min(settings.memory_limit_bytes, AHEAD_BYTES)
        own = replace(settings, memory_limit_bytes=limit_bytes, deadline_s=None, began=None)
        self.position = begin
        self._ready: deque[int] = deque()
        self._piece = memoryview(b"")
        self._session = ReadSession([source_object], plan_reads(items, 0), own, in_item_order=in_order, items="pieces")

    def close(self) -> None:
        """Stop reading."""
        self._session.close()
        self._piece = memoryview(b"")

    def read_into(self, buffer: memoryview) -> int:
        """Copy the next bytes into the buffer; only the end of the object leaves the buffer partly empty."""
        copied = 0
        while copied < buffer.nbytes:
            if not self._piece.nbytes and not self._has_next():
                break
            count = min(self._piece.nbytes, buffer.nbytes - copied)
            buffer[copied : copied + count] = self._piece[:count]
            self._piece = self._piece[count:]
            self.position += count
            copied += count
        return copied

    def skip_to(self, position: int) -> None:
        """Drop the bytes before a later position; raises as `read_into`."""
        while self.position < position:
            if not self._piece.nbytes and not self._has_next():
                break
            count = min(self._piece.nbytes, position - self.position)
            self._piece = self._piece[count:]
            self.position += count

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece with its offset; raises as `read_into`."""
        while self._has_next():
            yield self._begins[self._item], self._piece

    def _has_next(self) -> bool:
        self._piece = memoryview(b"")  # frees the last piece before the wait for the next one
        if not self._ready:
            self._ready.extend(self._session.next_items())
        if not self._ready:
            return False
        self._item = self._ready.popleft()
        memory = self._session.take(self._item)
        self._piece = memoryview(b"") if memory is None else memoryview(memory)
        return True


class JoinedItems:
    """See the module's docstring."""

    def __init__(self, session: ReadSession, plan: ReadPlan, item_of_row: Sequence[int]) -> None:
        self._session, self._item_of_row = session, item_of_row
        self._missing = Counter(item_of_row)
        self._first_row: dict[int, int] = {}
        self._place: list[tuple[int, int]] = []  # of each row, in its item
        sizes: Counter[int] = Counter()
        for row, (item, (_, begin, end, _, _)) in enumerate(zip(item_of_row, plan.item_rows(), strict=True)):
            self._first_row.setdefault(item, row)
            self._place.append((sizes[item], sizes[item] + end - begin))
            sizes[item] += end - begin
        self._is_joined = [self._missing[item] > 1 for item in item_of_row]
        self._sizes = sizes
        self._joined: dict[int, _native.Memory] = {}
        self._taken = 0

    def next_items(self, enough_bytes: int = 0) -> list[int]:
        """As `ReadSession.next_items`."""
        while rows := self._session.next_items(enough_bytes):
            items = [item for row in rows if (item := self._complete(row)) is not None]
            if items:
                return items
        return []

    def take_all(self, items: list[int]) -> list[_native.Memory | None]:
        """As `ReadSession.take_all`."""
        self._taken += len(items)
        joined = [self._joined.pop(item, None) for item in items]
        rows = [self._first_row[item] for item, memory in zip(items, joined, strict=True) if memory is None]
        others = iter(self._session.take_all(rows))
        return [next(others) if memory is None else memory for memory in joined]

    def close(self) -> None:
        """As `ReadSession.close`."""
        self._session.close()
        self._joined.clear()

    def stats(self) -> dict[str, int]:
        """Return the engine's counters, with the number of items that were handed out."""
        return {**self._session.stats(), "items_delivered": self._taken}

    def landed_bytes(self) -> int:
        """As `ReadSession.landed_bytes`."""
        return self._session.landed_bytes()

    def compares_answers(self, source: int) -> bool:
        """As `ReadSession.compares_answers`."""
        return self._session.compares_answers(source)

    def digest_pieces(self, item: int) -> list[tuple[int, int, int]]:
        """As `ReadSession.digest_pieces`, for an item of one range."""
        return self._session.digest_pieces(self._first_row[item])

    def _complete(self, row: int) -> int | None:
        """Note a range that has arrived; return its item if that is complete."""
        item = self._item_of_row[row]
        self._missing[item] -= 1
        if self._is_joined[row]:
            self._copy(row, item)
        return None if self._missing[item] else item

    def _copy(self, row: int, item: int) -> None:
        (memory,) = self._session.take_all([row])
        if memory is None:  # no range of several is empty
            raise LoadCancelledError("the stream was closed while it was read")
        if item not in self._joined:
            self._joined[item] = _native.allocate(self._sizes[item])
        begin, end = self._place[row]
        target = np.frombuffer(memoryview(self._joined[item]), np.uint8)  # it copies without the interpreter's lock
        target[begin:end] = np.frombuffer(memoryview(memory), np.uint8)
