"""One run of a group's loads: each rank reads its pieces, and receives what it wants of the others' pieces.

It takes the place of a `ReadSession`, with the same guarantees: each tensor is handed out once, when all its bytes
are there. The bytes of a window are exchanged while those of the next are read. The tensors come in the same order on
all ranks. If one rank fails, leaves or dies, the load fails on all.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from streamer import _native
from streamer._group.destination import Destination, copy_bytes, packed
from streamer._group.member import Member, State
from streamer._group.parts import bytes_between, clipped
from streamer._group.reads import GroupReads, OwnRead
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession
from streamer.core.errors import LoadCancelledError

__all__ = ["GroupSession"]

BEAT_S = 0.25  # how often a rank that waits for its storage asks the others whether they failed


class _Exchange(NamedTuple):
    """A window whose bytes are being exchanged.

    Attributes:
        window: Number of the window.
        received: Waits for the bytes and returns them; None if no rank sends any.
    """

    window: int
    received: Callable[[], Any] | None


class GroupSession:
    """See the module's docstring.

    Args:
        member: This rank.
        reads: What the group reads.
        plan: Where the tensors of this rank go.
        destination: Memory of these tensors.
        session: Makes the session that reads this rank's bytes; takes a function that the session calls while it waits.
    """

    def __init__(
        self,
        member: Member,
        reads: GroupReads,
        plan: ReadPlan,
        destination: Destination,
        session: Callable[[Callable[[Callable[[], int]], None]], ReadSession],
    ) -> None:
        self._member, self._reads, self._destination = member, reads, destination
        self._torch = sys.modules["torch"]
        self._sizes = [end - begin for _, begin, end, _, _ in plan.item_rows()]
        self._arrived: deque[int] = deque()
        self._next_window = 0
        self._others = [rank for rank in range(member.size) if rank != member.rank]
        self._on_its_way: _Exchange | None = None
        self._working = threading.Lock()  # collectives of two threads could be matched wrongly between ranks
        self._held_bytes = self._peak_held_bytes = 0
        self._is_finished = self._is_closing = False
        self._delivered = self._delivered_bytes = 0
        self._last_beat = time.monotonic()
        self._session = session(self._beat)

    def next_items(self, enough_bytes: int = 0) -> list[int]:
        """As `ReadSession.next_items`.

        Raises:
            GroupError: another rank failed, left, died or is silent.
        """
        del enough_bytes
        items: list[int] = []
        with self._working:
            try:
                while not items and not self._is_finished:
                    items = self._advance()
                return items
            except BaseException as error:
                self._member.fail(error)
                self._stop()
                raise

    def take_all(self, items: list[int]) -> list[_native.Memory | None]:
        """As `ReadSession.take_all`."""
        self._delivered += len(items)
        self._delivered_bytes += sum(self._sizes[item] for item in items)
        return [self._destination.take(item) for item in items]

    def close(self) -> None:
        """As `ReadSession.close`; the other ranks are told if this one leaves before the end.

        If another thread waits for tensors, that thread tells them, as its wait ends with an error.
        """
        self._is_closing = True
        if self._working.acquire(blocking=False):
            try:
                self._member.leave()
                self._stop()
            finally:
                self._working.release()
        self._session.close()

    def stats(self) -> dict[str, int]:
        """Return the engine's counters of this rank's reads, with the number of tensors that were handed out."""
        stats = self._session.stats()
        return {
            **stats,
            "items_delivered": self._delivered,
            "bytes_delivered": self._delivered_bytes,
            "peak_held_bytes": stats["peak_held_bytes"] + self._peak_held_bytes,
        }

    def landed_bytes(self) -> int:
        """As `ReadSession.landed_bytes`."""
        return self._session.landed_bytes()

    def compares_answers(self, source: int) -> bool:
        """As `ReadSession.compares_answers`."""
        return self._session.compares_answers(source)

    def digest_pieces(self, item: int) -> list[tuple[int, int, int]]:
        """Return no pieces: several ranks may read the bytes of a tensor, so no digest is computed."""
        del item
        return []

    def _check_open(self) -> None:
        if self._is_closing:
            raise LoadCancelledError("the stream was closed while it was read")

    def _stop(self) -> None:
        self._session.close()
        self._destination.clear()

    def _advance(self) -> list[int]:
        """Read and send the next window, then wait for the previous window; return the tensors that it completes."""
        on_its_way, self._on_its_way = self._on_its_way, None
        if self._next_window < len(self._reads.windows):
            self._on_its_way = self._begin(self._next_window)
            self._next_window += 1
        if on_its_way is not None:
            return self._finish(on_its_way)
        if self._on_its_way is None:
            self._wait_for_all()  # a rank that failed with its last tensors fails the load of all
            self._is_finished = self._member.is_over = True
        return []

    def _begin(self, window: int) -> _Exchange:
        """Read this rank's bytes of a window, and begin to send those that other ranks want."""
        reads, rank = self._reads, self._member.rank
        sizes = reads.sizes_to_send(window, rank)
        sent = self._torch.empty(sum(sizes), dtype=self._torch.uint8)
        ends = [sum(sizes[:other]) for other in range(self._member.size)]
        for read in reads.own[window]:
            self._add(read, self._next_memory(), sent, ends)
        self._wait_for_all()
        if not reads.windows[window].shared:
            return _Exchange(window, None)
        received_sizes = [
            0 if other == rank else reads.sizes_to_send(window, other)[rank] for other in range(len(sizes))
        ]
        room = self._torch.empty(sum(received_sizes), dtype=self._torch.uint8, device=self._member.device)
        before, self._held_bytes = self._held_bytes, sum(sizes) + sum(received_sizes)
        self._peak_held_bytes = max(self._peak_held_bytes, before + self._held_bytes)
        return _Exchange(window, self._member.exchange(room, sent, received_sizes, sizes))

    def _next_memory(self) -> _native.Memory:
        if not self._arrived:
            self._arrived.extend(self._session.next_items())
        memory = self._session.take_all([self._arrived.popleft()])[0]
        self._check_open()
        assert memory is not None, "no read of a group is empty"
        return memory

    def _add(self, read: OwnRead, memory: _native.Memory, sent: Any, ends: list[int]) -> None:
        """Copy a read to the tensors of this rank, and append it to the bytes that are sent to each other rank."""
        tensor, begin, end = read.piece
        if read.is_whole and self._destination.takes_memory_of_engine(tensor):
            self._destination.keep(tensor, memory)
            return
        data = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        self._destination.add_read(tensor, begin, data)
        for other in self._others if read.is_shared else ():
            for runs in clipped(self._reads.parts[other][tensor], begin, end):
                first, ends[other] = ends[other], ends[other] + runs.length * runs.number
                copy_bytes(sent[first : ends[other]].view(runs.number, runs.length), packed(data, begin, runs))

    def _finish(self, exchange: _Exchange) -> list[int]:
        window, at = self._reads.windows[exchange.window], 0
        if exchange.received is not None:
            received, parts = exchange.received(), self._reads.parts[self._member.rank]
            for piece in (each for other in self._others for each in window.stripe(other, self._member.size)):
                first, at = at, at + bytes_between(parts[piece.tensor], piece.begin, piece.end)
                if at > first:
                    self._destination.add_received(piece.tensor, piece.begin, received[first:at])
        complete = list(window.complete)
        self._destination.finish(complete)
        return complete

    def _beat(self, landed_bytes: Callable[[], int]) -> None:
        del landed_bytes
        if time.monotonic() - self._last_beat > BEAT_S and not self._is_finished:
            self._member.round(State.WAITING)
            self._last_beat = time.monotonic()

    def _wait_for_all(self) -> None:
        """Wait until all ranks have read their bytes of this window."""
        self._check_open()
        while any(state is not State.READY for state, _ in self._member.round(State.READY)):
            self._check_open()
        self._last_beat = time.monotonic()
