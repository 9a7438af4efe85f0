"""The threads of a member that read blocks from the storage into the slots that the leader lends to the member."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from streamer._node.assignment import READERS, Grant
from streamer._node.channel import Message
from streamer._node.meeting import Meeting
from streamer._node.storage_reads import StorageReads
from streamer.core.causes import forget_locals
from streamer.core.engine.plan import Item

__all__ = ["Fetchers"]


class Fetchers:
    """Reads for one meeting, until `close`.

    Args:
        meeting: Lends the slots.
        reads: Reads into them.
        send: Sends a message to the leader; called on the threads of this object.
        fail: Called with the exception of a failed read, also on these threads.
    """

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
