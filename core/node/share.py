"""Shares the reads of one load with other processes of this node: the seam between a stream and a meeting.

For the objects that are shared, the engine reads from a `PythonSource` that copies blocks out of shared memory, or
reads them from the storage if the meeting does not have them. All layers above are as in a load that reads alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from streamer import _native
from streamer.core.conditions import Event
from streamer.core.engine.byte_reads import address_of
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, ReadPlan, plan_reads
from streamer.core.engine.python_readers import LastAttemptError
from streamer.core.errors import StreamerError
from streamer.core.node.assignment import READERS
from streamer.core.node.grid import Grid, WantedBytes
from streamer.core.node.leader import Terms
from streamer.core.node.meeting import RenewedObjects, StorageReads
from streamer.core.node.member import Member, RangeSource, is_shortage
from streamer.core.node.messages import Rendezvous
from streamer.core.node.region import opening
from streamer.core.node.should_share import is_shareable, version_of
from streamer.core.options.machine import local_ranks, sharers
from streamer.core.options.options import KIB, MIB
from streamer.core.options.settings import Settings
from streamer.core.store.identities import digest_of, seal_of
from streamer.core.store.sources import PythonSource

LARGEST_BLOCK_BYTES = 8 * MIB
SMALLEST_BLOCK_BYTES = 64 * KIB
SLOTS = 64  # fewest slots, if blocks can be that small: a quarter is read, a quarter waits for each of two readers
FEWEST_SLOTS = 4  # two for the readers, and two for what they have read
THREADS = 8  # one member, one leader, two readers into slots, one reader out of them, and theirs in the engine
DESCRIPTORS = 32  # eight for the meeting, the others for connections and pollers of the engine
SHORTAGE_S = 1.0  # how long a read waits for a thread or descriptor, after the load has left the meeting
PAUSE_S = 0.02
BATCH_BYTES = 256 * MIB  # what one reader reads at a time: as much as 32 connections have in flight

# The engine's counters that a load sums over all its sessions.
_SUMMED = (
    *("http_requests", "retries", "hedges", "credential_refreshes"),
    *("outages", "waited_us", "probes", "cached_bytes"),
)


PROTOCOL = 2  # version of the messages, the book and the shared memory
_KEY_DIGITS = 40  # the name of a socket has at most 107 bytes


def key_of(objects: Sequence[SourceObject]) -> str:
    """Return a digest of a checkpoint's objects, in their order; it reveals no URL and no secret."""
    described = [[each.identity, each.size_bytes, version_of(each)] for each in objects]
    # All users see the names of sockets. Processes that meet need one salt, so that of their user is the best there is.
    seal = seal_of(digest_of(PROTOCOL, described), f"user {os.geteuid()}")
    return seal.rpartition("-")[2][:_KEY_DIGITS]


class NodeShare:
    """Takes part in meetings of this node, for one load.

    Attributes:
        objects: Objects for the engine, in place of the argument.
        plan: Plan for the engine, without gaps: a copy out of memory costs no request.
        settings: Settings for the engine.
    """

    def __init__(
        self, objects: Sequence[SourceObject], plan: ReadPlan, settings: Settings, *, takes_parts: bool
    ) -> None:
        _check_room()
        self._lock = threading.Lock()
        self._stats: Counter[str] = Counter()
        self._copied_bytes = 0
        shared = {number for number, each in enumerate(objects) if is_shareable(each)}
        own = plan.bytes_by_source()
        self._unshared_bytes = sum(size for number, size in own.items() if number not in shared)
        self.plan = _without_gaps(plan)
        terms = _terms(objects, settings)
        self._own = RenewedObjects(objects)
        inner = _inner_settings(settings, terms)
        self._reads: list[StorageReads] = []
        self._past = self._storage_reads(inner)
        self._member = Member(
            Rendezvous(key_of(objects)),
            [each.size_bytes for each in objects],
            _wanted(self.plan, shared, takes_parts),
            terms,
            partial(self._storage_reads, inner),
        )
        self.objects = [
            replace(
                each,
                source=PythonSource(partial(self._read_into, number), takes_block=True),
                compares_answers=False,
                cache=None,
            )
            if number in shared
            else each
            for number, each in enumerate(objects)
        ]
        own_limit = settings.node_limit_bytes // 2 // sharers()
        self.settings = replace(settings, memory_limit_bytes=max(1, own_limit))

    def close(self) -> None:
        """Leave the meeting; when this returns, no read of this load runs."""
        self._past.close()
        self._member.close()

    @property
    def read_bytes(self) -> int:
        """Bytes that this process read from the storage."""
        with self._lock:
            return self._stats["bytes_landed"] + self._unshared_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes that other processes read for this one."""
        with self._lock:
            return self._copied_bytes

    def facts(self) -> dict[str, Any]:
        """Return what the status page shows of this process's own reads, and for which process it waits."""
        running = [session for reads in self._reads for session in reads.running()]
        away = [entry for session in running for entry in session.away().items()]
        read_bytes = self.read_bytes + sum(session.landed_bytes() for session in running)
        awaited = 0 if running else self._member.awaited_process()  # it may wait for its own blocks and for others'
        return {"awaited_process": awaited, "read_bytes": read_bytes, "away": dict(away[:1])}

    def added_to(self, stats: Mapping[str, int]) -> dict[str, int]:
        """Add the counters of this process's own reads to those of the engine."""
        with self._lock:
            return {**stats, **{name: stats[name] + self._stats[name] for name in _SUMMED}}

    def _storage_reads(self, settings: Settings) -> StorageReads:
        reads = StorageReads(self._own, settings, self._count)
        self._reads.append(reads)
        return reads

    def _count(self, stats: Mapping[str, int]) -> None:
        with self._lock:
            self._stats.update({name: stats[name] for name in (*_SUMMED, "bytes_landed")})

    def _read_into(self, number: int, block: _native.PythonBlock, offset: int) -> int:
        del offset
        try:
            self._fill(number, block)
        except StreamerError as error:
            raise LastAttemptError(error) from None
        return block.end - block.begin

    def _fill(self, number: int, block: _native.PythonBlock) -> None:
        begin = block.begin
        while begin < block.end:
            found = self._member.find(number, begin, block.end)
            if found.meeting is None or found.ready is None:
                self._read_past(number, begin, found.end, block)
            elif not self._copy(begin, found, block):
                self._member.lost(found.meeting, found.ready[0])
                continue
            self._member.have(number, begin, found.end)
            begin = found.end

    def _copy(self, begin: int, found: RangeSource, block: _native.PythonBlock) -> bool:
        """Copy bytes out of the shared memory to their places; False if they were replaced meanwhile."""
        assert found.meeting is not None
        assert found.ready is not None
        shared, slot, _, _, generation = found.ready
        skipped, size_bytes = begin - found.meeting.grid.place(shared)[1], found.end - begin
        region = found.meeting.region
        if not region.copy(slot, skipped, generation, lambda address: block.copy_in(begin, address, size_bytes)):
            return False
        if shared not in found.meeting.fetched:
            with self._lock:
                self._copied_bytes += size_bytes
        return True

    def _read_past(self, number: int, begin: int, end: int, block: _native.PythonBlock) -> None:
        memory = _native.allocate(end - begin)
        address = address_of(memoryview(memory))
        give_up_at = time.monotonic() + SHORTAGE_S
        while True:
            try:
                self._past.read([Item(number, begin, end, address)], memory, lambda _: None)
                break
            except Exception as error:
                if not is_shortage(error) or time.monotonic() > give_up_at:
                    raise
                self._member.be_alone()
                time.sleep(PAUSE_S)  # until the threads of the meeting have ended
        block.copy_in(begin, address, end - begin)


def _check_room() -> None:
    """Check that the system has threads and descriptors for a meeting; without, reading alone needs fewer."""
    is_checked = Event()
    threads = [threading.Thread(target=is_checked.wait, name="streamer-member", daemon=True) for _ in range(THREADS)]
    started: list[threading.Thread] = []
    try:
        for each in threads:
            each.start()
            started.append(each)
        with ExitStack() as stack, opening:
            for _ in range(DESCRIPTORS):
                stack.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))
    finally:
        is_checked.set()
        for each in started:
            each.join()


def _terms(objects: Sequence[SourceObject], settings: Settings) -> Terms:
    """Choose the terms of a meeting that this process leads."""
    sizes = [each.size_bytes for each in objects if is_shareable(each)]
    region_bytes = settings.node_limit_bytes // 2
    wished = max(SMALLEST_BLOCK_BYTES, min(LARGEST_BLOCK_BYTES, min(region_bytes, sum(sizes)) // SLOTS))
    block_bytes = 1 << (wished.bit_length() - 1)
    slots = max(FEWEST_SLOTS, min(region_bytes // block_bytes, len(Grid(sizes, block_bytes))))
    return Terms(block_bytes, slots, max(1, BATCH_BYTES // block_bytes), local_ranks())


def _inner_settings(settings: Settings, terms: Terms) -> Settings:
    """Return the settings of reads into slots: such a read is short, so all its requests are large."""
    first = max(settings.http_first_block_bytes, min(settings.http_block_bytes, terms.block_bytes))
    pace = settings.max_bytes_per_second
    return replace(
        settings,
        http_first_block_bytes=first,
        first_memory_limit_bytes=0,
        max_bytes_per_second=max(SMALLEST_BLOCK_BYTES, pace // READERS) if pace else 0,
    )


def _without_gaps(plan: ReadPlan) -> ReadPlan:
    return plan_reads(plan.item_rows(), 0, plan.runs)


def _wanted(plan: ReadPlan, shared: set[int], takes_parts: bool) -> WantedBytes:
    return WantedBytes((each for each in plan.span_ranges() if each[0] in shared), takes_parts)
