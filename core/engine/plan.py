"""Plans which byte ranges to read, and which items lie in them, as flat tables for the engine.

Wanted ranges of one object that lie close together become one span; the engine cuts spans into equal blocks.

Items that a cache of this machine holds are read from it. Guarantees: an item is read from the cache only if the cache
records all its bytes with a CRC32C. The engine compares the CRC32C before the item is handed out. If the cached bytes
are damaged, the same session reads the item from its object. A tensor that no memory of this machine can hold is
refused: the system only promises memory until it is filled, and would kill the process.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from streamer import _native
from streamer.core.errors import OutOfMemoryError
from streamer.core.options.machine import memory_bytes, swap_bytes
from streamer.core.quoting import quoted
from streamer.core.store.sources import FileSource, HttpSource

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.native_session import SourceObject


class Item(NamedTuple):
    """One wanted byte range."""

    source: int  # index of the object
    begin: int  # first byte, in the object
    end: int  # offset after the last byte
    # Address of the caller's own memory. If it is 0, the engine allocates memory, or requests it from the consumer.
    target: int = 0
    # `streamer._native.HOST` for host memory that the engine allocates, CONSUMERS_HOST for host memory that it requests
    # from the consumer, else the number of a CUDA device
    device: int = _native.HOST


Row: TypeAlias = tuple[int, int, int, int, int]  # one row of a table: the fields of an Item, in their order
ITEM_COLUMNS = len(Item._fields)
SPAN_COLUMNS = 5
NO_SPAN = -(2**31)  # neither an object's number nor a device's


class ReadPlan(NamedTuple):
    """The tables that the engine reads: rows of 64-bit numbers."""

    items: array[int]  # ``source, begin, end, target, device`` per item, in their order
    spans: array[int]  # ``source, begin, end, first_item, item_count`` per span
    item_count: int  # number of items
    item_bytes: int  # bytes of all items
    span_bytes: int  # bytes that will be read, dropped gaps included
    # Three numbers for each item that is runs of bytes: its number, the length of a run, the distance of two beginnings
    runs: array[int] | None = None

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
        for item, dropped in self.dropped_bytes():
            bytes_of[self.items[item * ITEM_COLUMNS]] -= dropped
        return bytes_of

    def dropped_bytes(self) -> Iterator[tuple[int, int]]:
        """Yield each item with runs, and the bytes between them."""
        runs = self.runs or ()
        for item, run, stride in zip(runs[0::3], runs[1::3], runs[2::3], strict=True):
            _, begin, end, _, _ = self.items[item * ITEM_COLUMNS : (item + 1) * ITEM_COLUMNS]
            yield item, (end - begin) // stride * (stride - run)


def plan_reads(
    items: Iterable[Row],
    coalesce_gap_bytes: int,
    runs: array[int] | None = None,
    held_back: Collection[int] = (),
) -> ReadPlan:
    """Join neighbouring items of an object into spans, each for one device.

    Args:
        items: The items in reading order, each an `Item` or its five numbers. Items of one object must not overlap. An
            item that lies before its predecessor begins a new span. For an empty item nothing is read.
        coalesce_gap_bytes: Largest number of unwanted bytes between two items of one span.
        runs: As `ReadPlan.runs`.
        held_back: Items that are in no span, and will be.
    """
    listed = list(items)
    rows = array("q", list(chain.from_iterable(listed)))
    spans = array("q")
    span_bytes = first = last = span_begin = span_end = 0
    span_source = span_device = NO_SPAN
    for index, (source, begin, end, _, device) in enumerate(listed):
        if index in held_back:
            span_bytes += _close(spans, (span_source, span_begin, span_end, first, last + 1 - first)) + end - begin
            span_source = span_device = NO_SPAN
            span_begin = span_end = 0
            continue
        if source == span_source and device == span_device:
            if begin == end >= span_end:
                continue  # an empty item is not read, and neither are the gaps around it
            if span_begin < span_end and 0 <= begin - span_end <= coalesce_gap_bytes:
                last, span_end = index, end
                continue
        span_bytes += _close(spans, (span_source, span_begin, span_end, first, last + 1 - first))
        first, last, span_source, span_begin, span_end, span_device = index, index, source, begin, end, device
    span_bytes += _close(spans, (span_source, span_begin, span_end, first, last + 1 - first))
    plan = ReadPlan(rows, spans, len(listed), sum(rows[2::ITEM_COLUMNS]) - sum(rows[1::ITEM_COLUMNS]), span_bytes, runs)
    return plan._replace(item_bytes=plan.item_bytes - sum(dropped for _, dropped in plan.dropped_bytes()))


def _close(spans: array[int], span: Row) -> int:
    """Append a finished span to the table, unless it is empty; return its length."""
    _, begin, end, _, _ = span
    if begin < end:
        spans.extend(span)
    return end - begin


class Missing(NamedTuple):
    """A wanted range that the cache of this machine lacks."""

    item: int
    number: int  # of its object
    digest: str  # the object's `CachedObject.digest`
    begin: int
    end: int


class Guide(Protocol):
    """Releases the items of a session that were held back."""

    def start(self, engine: _native.Session, source_of: Mapping[tuple[int, str], int]) -> None:
        """Begin; `source_of` gives the number of a peer's object by the number of the object and the peer's address."""

    def end(self) -> None:
        """Stop."""


class Peers(Protocol):
    """The caches of other machines, for one load."""

    @property
    def addresses(self) -> Sequence[str]:
        """Where they are."""

    def guide(self, missing: Sequence[Missing], *, in_item_order: bool) -> Guide | None:
        """Return who decides during the load which of them gives what; None if it is not worth a question."""

    def source(self, address: str, digest: str) -> HttpSource:
        """Return the source of an object at a peer."""

    def note(self, received: Mapping[str, int]) -> None:
        """Count what a session got, by the URL of the source."""


class CachedObject:
    """An object's place in a cache.

    Attributes:
        entry: The engine's record of the cached bytes.
        folder: The folder of the object in the cache.
        is_trusted: Whether items are read from the cache; False after a digest of the storage mismatched.
        is_written: Whether bytes that are read from the object are added to the cache.
        may_wait: Whether readers wait until their bytes are written to the cache, so that none is left out.
        digest: A digest of what decides the object's bytes, the same on every machine.
        peers: The machines that may hold what this cache lacks, or None.
    """

    def __init__(self, entry: _native.CacheEntry, folder: str, lock: object, digest: str = "") -> None:
        self.entry, self.folder, self.may_wait, self.digest = entry, folder, False, digest
        self.is_trusted = self.is_written = True
        self.peers: Peers | None = None
        self._lock = lock  # held as long as a session may read or write the files

    @property
    def data_path(self) -> str:
        """The file with the cached bytes, at the same offsets as in the object."""
        return os.path.join(self.folder, "data")

    def distrust(self, end_bytes: int) -> None:
        """Stop reading from the cache, and forget the cached bytes before offset `end_bytes`."""
        self.is_trusted = False
        self.entry.forget(0, end_bytes)


class CachedReads(NamedTuple):
    """The result of `with_cache`."""

    plan: ReadPlan  # reads cached items from the files of the cache
    objects: Sequence[SourceObject]  # the objects of a load, followed by these files
    table: array[int] = array("q")  # rows of an item's number, the number of its object, and its CRC32C
    peers: Peers | None = None  # those that were asked
    source_of: Mapping[tuple[int, str], int] = {}  # the peers' objects, see `Guide.start`
    held_back: Sequence[int] = ()  # items
    guide: Guide | None = None


def with_cache(
    objects: Sequence[SourceObject], plan: ReadPlan, coalesce_gap_bytes: int, *, in_item_order: bool = False
) -> CachedReads:
    """Look up the items of a plan."""
    trusted = [number for number, each in enumerate(objects) if _is_read_from_cache(each)]
    if not trusted:
        return CachedReads(plan, objects)
    files = [_file_of(objects[number]) for number in trusted]
    file_of = {number: len(objects) + position for position, number in enumerate(trusted)}
    entries = {number: each.cache.entry for number in trusted if (each := objects[number]).cache is not None}
    for entry in entries.values():
        entry.refresh()
    table, rows = array("q"), []
    for item, (source, begin, end, target, device) in enumerate(plan.item_rows()):
        crc = entries[source].checksum(begin, end) if source in entries and begin < end else None
        if crc is not None:
            table.extend((item, source, crc))
        rows.append((source if crc is None else file_of[source], begin, end, target, device))
    read = CachedReads(plan, [*objects, *files], table)
    peers = next((each.cache.peers for number in trusted if (each := objects[number]).cache is not None), None)
    if peers is not None:
        read = _with_peers(read, peers, rows, in_item_order=in_item_order)
    if not read.table and read.guide is None:
        return CachedReads(plan, objects)
    return read._replace(plan=plan_reads(rows, coalesce_gap_bytes, held_back=set(read.held_back)))


def _with_peers(read: CachedReads, peers: Peers, rows: list[Row], *, in_item_order: bool) -> CachedReads:
    """Hold back missing items, and let a guide release them to peers or to the storage; all that comes is cached."""
    objects = read.objects
    caches = {number: each.cache for number, each in enumerate(objects) if each.cache is not None}
    missing = [
        Missing(item, number, caches[number].digest, begin, end)
        for item, (number, begin, end, _, _) in enumerate(rows)
        if number in caches and begin < end and _is_read_from_cache(objects[number])
    ]
    guide = peers.guide(missing, in_item_order=in_item_order)
    if guide is None:
        return read._replace(peers=peers)
    source_of: dict[tuple[int, str], int] = {}
    of_peers: list[SourceObject] = []
    for number in dict.fromkeys(each.number for each in missing):
        cache = caches[number]
        given = replace(objects[number], version="", compares_answers=False, cache=copy(cache))
        for address in peers.addresses:
            source_of[number, address] = len(objects) + len(of_peers)
            of_peers.append(replace(given, source=peers.source(address, cache.digest)))
        cache.may_wait = True  # other nodes wait for what this one reads from the storage
    held_back = [each.item for each in missing]
    return read._replace(
        objects=[*objects, *of_peers], peers=peers, source_of=source_of, held_back=held_back, guide=guide
    )


def _is_read_from_cache(source_object: SourceObject) -> bool:
    """Say whether an object is read from its cache; not if the checksum of each answer is to be compared."""
    source = source_object.source
    needs_answers = source_object.compares_answers and isinstance(source, HttpSource) and source.answer_checksum
    return source_object.cache is not None and source_object.cache.is_trusted and not needs_answers


def _file_of(source_object: SourceObject) -> SourceObject:
    assert source_object.cache is not None
    source = FileSource(source_object.cache.data_path)
    return replace(source_object, source=source, version="", compares_answers=False, cache=None, is_of_cache=True)


class _Named(Protocol):
    @property
    def uri(self) -> str:
        """The object, without secrets."""


def check_memory(plan: ReadPlan, objects: Sequence[_Named], name_of: Callable[[int], str] | None) -> None:
    """Check that each item fits in the memory this process may use, swap included."""
    usable = memory_bytes() + swap_bytes()
    if name_of is None or plan.item_bytes <= usable:  # the usual case: checking each of a million items takes time
        return
    for item, (source, begin, end, target, device) in enumerate(plan.item_rows()):
        if end - begin > usable and not target and device == _native.HOST:
            raise OutOfMemoryError(
                f"tensor {quoted(name_of(item))} has {end - begin} bytes, but this process may use only {usable}"
                " bytes of memory",
                uri=objects[source].uri,
                hint="Load it on a machine with more, leave it out (names=), or read rows of it (open().get_slice)",
                requested_bytes=end - begin,
            )
