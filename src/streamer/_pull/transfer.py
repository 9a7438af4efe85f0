"""Reads the missing bytes of many files in one session of the engine, while threads write them.

A pull begins with few bytes in flight. If they arrive in less than a second, more bytes may be in flight, at most eight
times as many in one step. A fast line is fully used after three or four answers.

Guarantees: a piece has at most an eighth of the bytes before it, or 64 KiB. So if a pull is stopped, the incomplete
piece is a small part of the bytes that this run has read, on a slow line as on a fast one.

Guarantees: memory is bounded, however many and large the files are. Each file has the bytes of one version, and is
compared with its storage's digest if there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from streamer._pull.folder import Writers
from streamer._pull.resumed_file import PartFile
from streamer.core.bounds import CONSUMER, WRITING, bound_by
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.options.settings import Settings
from streamer.core.store.sources import ObjectInfo
from streamer.core.verification.file_bytes import FileDigests

FIRST_BYTES = 256 << 10  # four seconds of a line with 64 kB/s, so that a pull stopped every five seconds advances
# Highest factor by which one measurement raises the read-ahead: the first bytes may come from a buffer, faster than the
# line.
GROWTH = 8
AHEAD_S = 1.0

SMALLEST_BYTES = 64 << 10  # a thousand of them cost some 50 ms of Python
LARGEST_BYTES = 8 << 20  # the largest block, so that a piece is complete with one answer
SHARE = 8

AHEAD_BYTES = 256 << 20  # in flight in the engine; pieces that wait for a writer thread add up to 64 MiB


class Ahead:
    """Measures how fast bytes arrive."""

    def __init__(self, most_bytes: int, now: float) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = self.bytes = min(FIRST_BYTES, most_bytes)  # how many bytes may be in flight now
        self._arrived_bytes, self._since = 0, now

    def count(self, size_bytes: int, now: float) -> bool:
        """Count bytes that arrived; return whether `bytes` has changed.

        Example:
            >>> ahead = Ahead(1 << 30, 0.0)
            >>> ahead.count(FIRST_BYTES, 0.25), ahead.bytes == 4 * FIRST_BYTES
            (True, True)
        """
        self._arrived_bytes += size_bytes
        if self._arrived_bytes < self.bytes:  # bytes are still in flight
            return False
        in_a_second = self._arrived_bytes * AHEAD_S / max(now - self._since, 1e-6)
        before, most_bytes = self.bytes, min(self.bytes * GROWTH, self._most_bytes)
        self.bytes = int(max(self._least_bytes, min(in_a_second, most_bytes)))
        self._arrived_bytes, self._since = 0, now
        return self.bytes != before


def cut(missing: Iterable[tuple[int, int]]) -> list[Item]:
    """Cut files into pieces; sizes are powers of two, and a piece ends at a multiple of its size, as blocks do.

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


@dataclass(frozen=True)
class Incoming:
    """One file to read."""

    info: ObjectInfo  # the storage's description of the file
    source_object: SourceObject  # the source of its bytes
    part: PartFile  # the part to which the bytes are written
    digests: FileDigests  # the digests of its bytes
    kept_bytes: int  # bytes from an earlier run, which are read again for the digests
    settings: Settings

    @property
    def checked_bytes(self) -> int:
        """Number of kept bytes that were read again."""
        return min(self.digests.position_bytes, self.kept_bytes)

    def write(self, data: memoryview) -> None:
        """Write the next bytes; raises as `PartFile.write`."""
        with self.settings.traced("write", self.info.path.rpartition("/")[2], bytes=data.nbytes):
            self.part.write(data, self.digests)

    def close(self) -> None:
        """Close the file."""
        self.part.close()

    def finish(self) -> None:
        """Verify and flush the file; raises as `PartFile.finish`."""
        self.part.finish(self.digests)


def transfer(
    files: Sequence[Incoming],
    settings: Settings,
    on_progress: Callable[[Callable[[], int]], None],
    on_wait: Callable[[str], None],
) -> Mapping[str, float]:
    """Read all missing bytes, and finish all files; return what bounded the reads."""
    items = cut([(each.part.offset, each.source_object.size_bytes) for each in files])
    objects = [each.source_object for each in files]
    most_bytes = min(settings.memory_limit_bytes, AHEAD_BYTES)
    ahead = Ahead(most_bytes, time.monotonic())
    own = replace(settings, memory_limit_bytes=most_bytes, first_memory_limit_bytes=ahead.bytes)
    shown, bounds = _FileProgress(files, on_progress), dict[str, float]()
    with Writers(files, shown.show) as writers:
        for number, each in enumerate(files):
            if each.part.offset == each.source_object.size_bytes:  # empty, or an earlier run did not finish it
                writers.put(number, None)
        if items:
            plan = plan_reads(items, 0)
            session = ReadSession(
                objects, plan, own, in_item_order=True, on_progress=shown.update, on_wait=on_wait, items="pieces"
            )
            with closing(session):
                _write(session, writers, files, items, ahead)
                bounds = {WRITING if word == CONSUMER else word: of for word, of in bound_by(session.stats()).items()}
            shown.update(lambda: plan.span_bytes)
        writers.finish()
    return bounds


class _FileProgress:
    """Shows progress during the read, and while only kept bytes are read again, which takes long for a large part."""

    def __init__(self, files: Sequence[Incoming], on_progress: Callable[[Callable[[], int]], None]) -> None:
        self._files, self._on_progress = files, on_progress
        self._count_read: Callable[[], int] = lambda: 0

    def update(self, count_read: Callable[[], int]) -> None:
        self._count_read = count_read
        self.show()

    def show(self) -> None:
        self._on_progress(lambda: self._count_read() + sum(each.checked_bytes for each in self._files))


def _write(session: ReadSession, writers: Writers, files: Sequence[Incoming], items: list[Item], ahead: Ahead) -> None:
    while arrived := session.next_items():
        for item in arrived:
            number, _, end, *_ = items[item]
            memory = session.take(item)
            assert memory is not None
            if ahead.count(len(memoryview(memory)), time.monotonic()):
                session.set_memory_limit(ahead.bytes)
            writers.put(number, memoryview(memory))
            if end == files[number].source_object.size_bytes:
                writers.put(number, None)
