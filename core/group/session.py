"""One run of a group's loads: each rank reads its pieces, and receives what it wants of the others' pieces.

It takes the place of a `ReadSession`, with the same guarantees: each tensor is handed out once, when all its bytes
are there. The bytes of a window are exchanged while those of the next are read. The tensors come in file order on
all ranks. If one rank fails, leaves or dies, the load fails on all.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from streamer import _native
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession
from streamer.core.errors import LoadCancelledError
from streamer.core.group.assembly import TensorAssembly, bytes_between, clipped, copy_bytes, packed
from streamer.core.group.member import BEAT_S, Member, State
from streamer.core.group.verification import CHECKSUM_BYTES, GroupVerification
from streamer.core.group.windows import GroupReads, OwnRead, Window


class _Exchange(NamedTuple):
    """A window whose bytes are being exchanged."""

    window: int
    received: Callable[[], Any] | None  # waits for the bytes and returns them; None if no rank sends any


class GroupSession:
    """See the module's docstring.

    Args:
        member: This rank.
        reads: What the group reads.
        plan: Where the tensors of this rank go.
        destination: Memory of these tensors.
        session: Makes the session that reads this rank's bytes; takes a function that the session calls while it waits.
        kept: Numbers that the group's reads give to the tensors of this rank, in their order.
        verification: Compares the tensors, or None.
    """

    def __init__(
        self,
        member: Member,
        reads: GroupReads,
        plan: ReadPlan,
        destination: TensorAssembly,
        session: Callable[[Callable[[Callable[[], int]], None]], ReadSession],
        *,
        kept: Sequence[int],
        verification: GroupVerification | None,
    ) -> None:
        self._member, self._reads, self._destination = member, reads, destination
        self._torch = sys.modules["torch"]
        self._own_numbers = {number: own for own, number in enumerate(kept)}
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
        self._verification = verification
        self._session, self._waited_before_s = session(self._beat), member.waited_s
        member.status = self._session.status

    def next_items(self, enough_bytes: int = 0) -> list[int]:
        """As `ReadSession.next_items`."""
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
        ranks_us = int((self._member.waited_s - self._waited_before_s) * 1e6)  # the engine takes it for the consumer's
        return {
            **stats,
            "items_delivered": self._delivered,
            "bytes_delivered": self._delivered_bytes,
            "peak_held_bytes": stats["peak_held_bytes"] + self._peak_held_bytes,
            "ranks_us": ranks_us,
            "consumer_us": max(0, stats["consumer_us"] - ranks_us),
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
        rank, ranks = self._member.rank, self._member.size
        sizes = self._sizes_to_send(window, rank)
        sent = self._torch.empty(sum(sizes), dtype=self._torch.uint8, device="cpu")
        ends = [sum(sizes[:other]) for other in range(ranks)]
        checksums = bytearray()
        for read in self._reads.own[window]:
            item = self._next_item()
            self._add(read, item, sent, ends)
            if self._verification is not None:
                checksums += self._checksum(read, item)
        for other in self._others if checksums else ():
            sent[ends[other] : ends[other] + len(checksums)] = self._torch.frombuffer(checksums, dtype=sent.dtype)
        self._wait_for_all()
        if not self._reads.windows[window].shared and self._verification is None:
            return _Exchange(window, None)
        received_sizes = [0 if other == rank else self._sizes_to_send(window, other)[rank] for other in range(ranks)]
        room = self._torch.empty(sum(received_sizes), dtype=self._torch.uint8, device=self._member.device)
        before, self._held_bytes = self._held_bytes, sum(sizes) + sum(received_sizes)
        self._peak_held_bytes = max(self._peak_held_bytes, before + self._held_bytes)
        return _Exchange(window, self._member.exchange(room, sent, received_sizes, sizes))

    def _sizes_to_send(self, window: int, rank: int) -> list[int]:
        """Count the bytes that a rank sends to each other rank: of tensors, and the checksums of its reads."""
        sizes = self._reads.sizes_to_send(window, rank)
        if self._verification is None:
            return sizes
        checksums = CHECKSUM_BYTES * sum(1 for _ in self._reads.of_rank(window, rank))
        return [0 if other == rank else size + checksums for other, size in enumerate(sizes)]

    def _checksum(self, read: OwnRead, item: int) -> bytes:
        """Note the checksum of a read, and return it as it is sent."""
        assert self._verification is not None
        ((_, _, checksum),) = self._session.digest_pieces(item)
        self._verification.note(read, checksum)
        return checksum.to_bytes(CHECKSUM_BYTES, "little")

    def _next_item(self) -> int:
        if not self._arrived:
            self._arrived.extend(self._session.next_items())
        return self._arrived.popleft()

    def _add(self, read: OwnRead, item: int, sent: Any, ends: list[int]) -> None:
        """Copy a read to the tensors of this rank, and append it to the bytes that are sent to each other rank."""
        memory = self._session.take_all([item])[0]
        self._check_open()
        assert memory is not None, "no read of a group is empty"
        tensor, begin, end = read.piece
        own_number = self._own_numbers.get(tensor)
        if read.is_whole and own_number is not None and self._destination.takes_memory_of_engine(own_number):
            self._destination.keep(own_number, memory)
            return
        data = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        if own_number is not None:
            self._destination.add_read(own_number, begin, data)
        for other in self._others if read.is_shared else ():
            for runs in clipped(self._reads.parts[other][tensor], begin, end):
                first, ends[other] = ends[other], ends[other] + runs.length * runs.number
                copy_bytes(sent[first : ends[other]].view(runs.number, runs.length), packed(data, begin, runs))

    def _finish(self, exchange: _Exchange) -> list[int]:
        window, at = self._reads.windows[exchange.window], 0
        received = exchange.received() if exchange.received is not None else None
        for other in self._others if received is not None else ():
            at = self._take_stripe(window, other, received, at)
            if self._verification is not None:
                at = self._take_checksums(exchange.window, other, received, at)
        if self._verification is not None:
            self._verification.compare(window.complete)
        complete = [self._own_numbers[tensor] for tensor in window.complete if tensor in self._own_numbers]
        self._destination.finish(complete)
        return complete

    def _take_stripe(self, window: Window, other: int, received: Any, at: int) -> int:
        """Copy what another rank sent to the tensors of this rank; return the offset after these bytes."""
        parts = self._reads.parts[self._member.rank]
        for piece in window.stripe(other, self._member.size):
            first, at = at, at + bytes_between(parts[piece.tensor], piece.begin, piece.end)
            if at > first:
                self._destination.add_received(self._own_numbers[piece.tensor], piece.begin, received[first:at])
        return at

    def _take_checksums(self, window: int, other: int, received: Any, at: int) -> int:
        """Note the checksums that another rank sent; return the offset after them."""
        assert self._verification is not None
        reads = list(self._reads.of_rank(window, other))
        end = at + CHECKSUM_BYTES * len(reads)
        sent = received[at:end].cpu().numpy().tobytes()
        for number, read in enumerate(reads):
            first = CHECKSUM_BYTES * number
            self._verification.note(read, int.from_bytes(sent[first : first + CHECKSUM_BYTES], "little"))
        return end

    def _beat(self, landed_bytes: Callable[[], int]) -> None:
        del landed_bytes
        if time.monotonic() - self._last_beat > BEAT_S and not self._is_finished:
            self._member.round(State.WAITING)
            self._last_beat = time.monotonic()

    def _wait_for_all(self) -> None:
        """Wait until all ranks have read their bytes of this window."""
        self._member.until_ready(check=self._check_open)
        self._last_beat = time.monotonic()
