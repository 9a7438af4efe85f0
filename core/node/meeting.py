"""What one member knows of one meeting, and its reads from the storage.

It knows the blocks of the meeting, where those that are ready lie, and what it has to send. Each of its reads is a
session of the engine: past the meeting, or into slots that are lent.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from select import select
from typing import Any

from streamer.core.causes import forget_locals
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import LoadCancelledError
from streamer.core.node.assignment import READERS, Grant, Ready
from streamer.core.node.grid import Grid, Hull, Range, WantedBytes
from streamer.core.node.messages import Channel, ChannelClosedError, Message
from streamer.core.node.region import Region
from streamer.core.options.settings import Settings
from streamer.core.store.sources import HttpSource

_MERGED = ("read", "take")  # messages whose lists may be joined


class Meeting:
    """One meeting, as a member sees it. The member's lock protects all but the channel, which its thread uses.

    Attributes:
        left: By block, the number of bytes that the member wants of the block and does not have.
        ready: By block, where a ready block lies.
        grants: Blocks that are lent to the member's readers; None ends a reader.
        fetched: Blocks that this member reads itself.
        readers: By block that this member waits for, the number of the process that reads it.
    """

    def __init__(self, channel: Channel, region: Region, grid: Grid) -> None:
        self.channel, self.region, self.grid = channel, region, grid
        self.left: dict[int, int] = {}
        self.ready: dict[int, Ready] = {}
        self.grants: SimpleQueue[list[Grant] | None] = SimpleQueue()
        self.fetched: set[int] = set()
        self.readers: dict[int, int] = {}
        self._unsent: deque[Message] = deque()

    def join(self, missing: Iterable[Range], wanted: WantedBytes) -> None:
        """Say what the member wants."""
        hulls: dict[int, Hull] = {}
        for block, (source, begin, end) in self.grid.pieces(missing):
            size = wanted.bytes_in(source, begin, end)
            if size:
                first, stop = hulls.get(block, (begin, end))
                hulls[block] = min(first, begin), max(stop, end)
                self.left[block] = self.left.get(block, 0) + size
        self.post(["join", [[block, *hull] for block, hull in hulls.items()], wanted.takes_parts])

    def post(self, message: Message) -> None:
        """Add a message to the messages that are to be sent."""
        if self._unsent and message[0] in _MERGED and self._unsent[-1][0] == message[0]:
            self._unsent[-1][1].extend(message[1])
        else:
            self._unsent.append(message)

    def unsent(self) -> list[Message]:
        """Return the messages that are to be sent, and remove them from the queue."""
        messages = list(self._unsent)
        self._unsent.clear()
        return messages

    def note(self, message: Message) -> None:
        """Process a message of the leader."""
        kind = message[0]
        if kind == "grant":
            self.grants.put([_row(each, 4) for each in message[1]])  # type: ignore[misc]  # `_row` checks the count
        elif kind == "ready":
            for row in message[1]:
                block, slot, begin, end, generation = _row(row, 5)
                if block in self.left and 0 <= slot < self.region.slots:
                    self.ready[block] = block, slot, begin, end, generation
                    self.readers.pop(block, None)
        elif kind == "dropped":
            for block in message[1]:
                self.forget(int(block))
        elif kind == "reader" and message[1] in self.left and message[1] not in self.ready:
            self.readers[message[1]] = int(message[2])

    def forget(self, block: int) -> None:
        """Expect nothing more of a block: the member has it, or reads it past the meeting."""
        self.left.pop(block, None)
        self.ready.pop(block, None)
        self.readers.pop(block, None)


def entered(connected: socket.socket, sizes: list[int], until: float) -> Meeting | None:
    """Wait for the leader's welcome; None if it does not come in time."""
    channel = Channel(connected)
    try:
        readable, _, _ = select([channel], [], [], max(0.0, until - time.monotonic()))
        if readable:
            messages, memory = channel.receive_memory()
            if memory is not None:
                (kind, block_bytes, slots), *_ = messages
                region = Region(memory, int(slots), int(block_bytes))
                if kind == "welcome":
                    return Meeting(channel, region, Grid(sizes, region.slot_bytes))
                region.close()
    except (ChannelClosedError, OSError, ValueError, TypeError):
        pass
    channel.close()
    return None


def _row(values: Any, count: int) -> tuple[int, ...]:
    row = tuple(int(each) for each in values)
    if len(row) != count:
        raise ValueError("a message is malformed")
    return row


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
            facts=None,
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

    def running(self) -> list[ReadSession]:
        """Return the reads that have not ended."""
        with self._lock:
            return list(self._running)

    def close(self) -> None:
        """End all reads; when this returns, none of them writes to its targets."""
        with self._lock:
            self._is_closed = True
        for session in self.running():
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
