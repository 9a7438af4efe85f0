"""Divides among the nodes that load the same what none of them holds: each reads its part from the storage.

What nobody holds is held back in the engine. A thread asks the peers again and again, releases what one of them holds
by now to be read from there, and releases the own part to the storage, bit by bit: about a second of work ahead. So the
parts follow the nodes that come and go, and a node that begins first does not read everything. The parts are runs of
neighbouring bytes, by rendezvous hashing over the nodes that load, with equal numbers of runs. Guarantees: every item
is released; if the others stop making progress, or the storage is the faster one, to the storage.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING

from streamer import _native
from streamer.core.conditions import Event
from streamer.core.engine.plan import Missing
from streamer.core.peers.asking import offers_of

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.peers.asking import Peers

LOOK_S = 0.05  # between two looks at how far the storage is
ASK_S = 0.25  # between two questions to the peers
PATIENCE_S = 2.0  # for their answers, and without any progress of them
LEAST_AHEAD_BYTES = 16 << 20  # released to the storage ahead of what has arrived
AHEAD_S = 1.0  # the same, as time at the speed so far
PART_BYTES = 8 << 20  # of a run; larger if there were more than `MOST_PARTS`
MOST_PARTS = 1024


class LoadGuide:
    """The guide of one session; see the module's docstring."""

    def __init__(self, peers: Peers, missing: Sequence[Missing], left: Sequence[Missing]) -> None:
        assert peers.server is not None
        self._peers, self._server = peers, peers.server
        self._names = [*peers.names_of(missing).values()]
        self._pending = {each.item: each for each in left}
        part_bytes = max(PART_BYTES, sum(each.end - each.begin for each in missing) // MOST_PARTS)
        self._part_of = {  # of all that nodes may lack, so that all of them make the same parts
            each.item: f"{each.digest}/{each.begin // part_bytes}" for each in missing
        }
        self._own = {each.number for each in missing}  # the objects
        self._released_bytes = 0  # to the storage
        # When how many bytes were pending
        self._progress = deque([(time.monotonic(), sum(each.end - each.begin for each in left))])
        self._ended = Event()
        self._thread = Thread(target=self._run, name="streamer-guide", daemon=True)

    def start(self, engine: _native.Session, source_of: Mapping[tuple[int, str], int]) -> None:
        """Begin to release."""
        self._engine, self._source_of = engine, source_of
        self._began, self._before = time.monotonic(), self._stored_bytes()
        self._thread.start()

    def end(self) -> None:
        """Stop; what is not released then is not wanted any more."""
        if not self._ended.is_set():
            self._ended.set()
            self._server.finish(self._names)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            asked, mine = -ASK_S, list[Missing]()
            while self._pending and not self._ended.wait(LOOK_S if asked > 0 else 0):
                if time.monotonic() - asked >= ASK_S:
                    mine = self._ask_again()
                    asked = time.monotonic()
                self._top_up(mine)
        finally:  # whatever happens here, no item stays behind
            self._release((each, each.number, 0) for each in list(self._pending.values()))

    def _ask_again(self) -> list[Missing]:
        """Release what peers hold by now; return the own part of the rest."""
        pending = list(self._pending.values())
        answers = self._peers.ask(pending, PATIENCE_S)
        offers = zip(pending, offers_of(pending, answers), strict=True)
        self._release(
            (each, self._source_of[each.number, offer[0]], offer[1]) for each, offer in offers if offer is not None
        )
        left = list(self._pending.values())
        now, left_bytes = time.monotonic(), sum(each.end - each.begin for each in left)
        self._progress.append((now, left_bytes))
        while len(self._progress) > 2 and self._progress[1][0] < now - PATIENCE_S:
            self._progress.popleft()
        others = {answer.peer for answer in answers.values() if answer.is_loading}
        owner = owners(sorted({*self._part_of.values()}), {*others, self._server.name})
        mine = [each for each in left if owner[self._part_of[each.item]] == self._server.name]
        if mine or not left or not self._is_late(left_bytes, now):
            return mine
        return left[::-1]  # the others begin with the first

    def _is_late(self, left_bytes: int, now: float) -> bool:
        """Whether the storage gives the rest earlier than the peers come to hold it."""
        (since, before), elapsed_s = self._progress[0], max(now - self._began, 1e-3)
        if now - since < PATIENCE_S:
            return False
        speed = (before - left_bytes) / (now - since)
        own_speed = (self._stored_bytes() - self._before) / elapsed_s
        return own_speed > 2 * speed or speed == 0

    def _top_up(self, mine: list[Missing]) -> None:
        stored_bytes = self._stored_bytes() - self._before
        elapsed_s = max(time.monotonic() - self._began, LOOK_S)
        ahead_bytes = max(LEAST_AHEAD_BYTES, AHEAD_S * stored_bytes / elapsed_s)
        chosen, size_bytes = [], self._released_bytes - stored_bytes
        for each in mine:
            if size_bytes >= ahead_bytes:
                break
            size_bytes += each.end - each.begin
            chosen.append((each, each.number, 0))
        del mine[: len(chosen)]
        self._released_bytes += sum(each.end - each.begin for each, _, _ in chosen)
        self._release(chosen)

    def _stored_bytes(self) -> int:
        landed = self._engine.landed_bytes()
        return sum(landed[number] for number in self._own)

    def _release(self, items: Iterable[tuple[Missing, int, int]]) -> None:
        table = array("q")
        for each, source, crc in items:
            if self._pending.pop(each.item, None) is not None:
                table.extend((each.item, source, crc))
        if table:
            self._engine.release(table)


def owners(parts: Sequence[str], nodes: Iterable[str]) -> dict[str, str]:
    """Choose a node for each part, the same on each node: by rendezvous hashing, with equal numbers of parts.

    Example:
        >>> owners(["a", "b", "c"], ["x"])
        {'a': 'x', 'b': 'x', 'c': 'x'}
    """
    names = sorted(nodes)
    most = -(-len(parts) // len(names))
    room = dict.fromkeys(names, most)
    chosen = {}
    for part in parts:
        ranked = sorted(names, key=lambda name: hashlib.blake2b(f"{part} {name}".encode(), digest_size=8).digest())
        chosen[part] = next(name for name in ranked if room[name])
        room[chosen[part]] -= 1
    return chosen
