"""Reads of one load from its storage, each a session of the engine: past a meeting, or into slots that are lent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from streamer.core.causes import forget_locals
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import LoadCancelledError
from streamer.core.node.assignment import READERS, Grant
from streamer.core.node.meeting import Meeting
from streamer.core.node.messages import Message
from streamer.core.options.settings import Settings
from streamer.core.store.sources import HttpSource

__all__ = ["Fetchers", "RenewedObjects", "StorageReads"]


class RenewedObjects:
    """The objects of a load, each with the credentials of its last read. Thread-safe."""

    def __init__(self, objects: Sequence[SourceObject]) -> None:
        self._objects = [self._noting(number, each) for number, each in enumerate(objects)]

    def __getitem__(self, number: int) -> SourceObject:
        return self._objects[number]

    def _noting(self, number: int, each: SourceObject) -> SourceObject:
        """Note what `refresh` returns, so that the next session need not refresh again."""
        source = each.source
        if not isinstance(source, HttpSource) or source.refresh is None:
            return each
        ask = source.refresh

        def refresh() -> HttpSource:
            fresh = replace(ask(), refresh=refresh)
            self._objects[number] = replace(each, source=fresh)
            return fresh

        return replace(each, source=replace(source, refresh=refresh))


class StorageReads:
    """Reads that end together. Thread-safe."""

    def __init__(self, objects: RenewedObjects, settings: Settings, count: Callable[[dict[str, int]], None]) -> None:
        self._objects, self._settings, self._count = objects, settings, count
        self._lock = threading.Lock()
        self._running: set[ReadSession] = set()
        self._is_closed = False

    def read(self, items: Sequence[Item], keep_alive: object, on_read: Callable[[list[int]], None]) -> None:
        """Read items to their targets; call `on_read` with the numbers of the items that have arrived."""
        used = sorted({each.source for each in items})
        renumbered = [each._replace(source=used.index(each.source)) for each in items]
        session = ReadSession(
            [self._objects[number] for number in used],
            plan_reads(renumbered, 0),
            self._settings,
            keep_alive=keep_alive,
            items="blocks",
        )
        try:
            self._add(session)
            while arrived := session.next_items():
                session.take_all(arrived)
                on_read(arrived)
        finally:
            self._count(session.stats())
            session.close()
            with self._lock:
                self._running.discard(session)

    def close(self) -> None:
        """End all reads; when this returns, none of them writes to its targets."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for session in running:
            with suppress(RuntimeError):  # raised in a forked child
                session.close()

    def _add(self, session: ReadSession) -> None:
        with self._lock:
            if self._is_closed:
                raise LoadCancelledError("the load was closed while its blocks were read")
            self._running.add(session)


class Fetchers:
    """Reads for one meeting, until `close`."""

    def __init__(
        self,
        meeting: Meeting,
        reads: StorageReads,
        send: Callable[[Meeting, Message], None],
        fail: Callable[[Meeting, BaseException], None],
    ) -> None:
        self._meeting, self._reads, self._send, self._fail = meeting, reads, send, fail
        self._threads: list[threading.Thread] = []
        for number in range(READERS):
            thread = threading.Thread(target=self._run, name=f"streamer-fetch{number}", daemon=True)
            with suppress(RuntimeError):  # the system gives no thread: other members read more
                thread.start()
                self._threads.append(thread)

    @property
    def are_running(self) -> bool:
        """Whether a thread could be started. Without one, nobody would read the blocks that are lent to this member."""
        return bool(self._threads)

    def close(self) -> None:
        """Stop the reads; when this returns, no thread writes to a slot any more."""
        self._reads.close()
        for _ in self._threads:
            self._meeting.grants.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            self._send(self._meeting, ["ask"])
            grants = self._meeting.grants.get()
            if grants is None:
                return
            unread = {(block, slot) for block, slot, _, _ in grants}
            try:
                self._read(sorted(grants), unread)
            except BaseException as error:
                forget_locals(error)
                self._send(self._meeting, ["fail", sorted(unread)])
                self._fail(self._meeting, error)
                return

    def _read(self, grants: list[Grant], unread: set[tuple[int, int]]) -> None:
        meeting, items = self._meeting, []
        for block, slot, begin, end in grants:
            source, first, stop = meeting.grid.place(block)
            if not (first <= begin < end <= stop and 0 <= slot < meeting.region.slots):
                raise ValueError("a message is malformed")
            items.append(Item(source, begin, end, meeting.region.address(slot) + begin - first))

        def note(arrived: list[int]) -> None:
            lent = [(grants[number][0], grants[number][1]) for number in arrived]
            unread.difference_update(lent)
            meeting.fetched.update(block for block, _ in lent)
            self._send(meeting, ["read", lent])

        self._reads.read(items, meeting.region, note)
