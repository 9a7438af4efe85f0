"""How fast a source gives what was released to it, and how much more is to be released."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence

GROWTH = 4  # at most so much more than what has arrived
MEASURED_S = 1.0  # the time that the speed is measured over


class Flow:
    """A peer, or the storage.

    Args:
        sources: Their numbers in the engine.
        received_bytes: What each source of the engine has given before.

    Attributes:
        released_bytes: What was asked for.
        has_given: Whether it has given anything.
    """

    def __init__(self, sources: Collection[int], received_bytes: Sequence[int] | None = None) -> None:
        self.sources = frozenset(sources)
        self._received_bytes = 0 if received_bytes is None else sum(received_bytes[each] for each in sources)
        self.released_bytes, self.has_given = self._received_bytes, False
        self._looked = time.monotonic()
        self._given: deque[tuple[float, int]] = deque()  # in so many seconds, so many bytes
        self._is_giving = False  # the time before its first byte is no measure of its speed

    @property
    def awaited_bytes(self) -> int:
        """How much has not arrived yet."""
        return self.released_bytes - self._received_bytes

    @property
    def speed(self) -> float:
        """Bytes per second, while it had something to give; 0 if that is not known."""
        elapsed_s = sum(each for each, _ in self._given)
        return sum(size_bytes for _, size_bytes in self._given) / elapsed_s if elapsed_s else 0.0

    def room_bytes(self, ahead_s: float) -> float:
        """How much more is to be released now, so that it has enough for so long at the speed so far."""
        ahead_bytes = min(ahead_s * self.speed, GROWTH * self._received_bytes)  # few bytes tell little about the speed
        return max(1, ahead_bytes) - self.awaited_bytes

    def most_bytes(self, left_s: float, other_speed: float) -> float:
        """Return how large an item may be, if this source is to give it earlier than a faster one.

        The faster one would begin with it when all the rest of the load has come.
        """
        if not 0 < self.speed < other_speed:
            return math.inf
        return (left_s - self.awaited_bytes / self.speed) / (1 / self.speed - 1 / other_speed)

    def look(self, now: float, received_bytes: Sequence[int]) -> int:
        """See what each source of the engine has given; return what came of this one since the last look."""
        elapsed_s, self._looked = now - self._looked, now
        was_awaited, before = self.awaited_bytes > 0, self._received_bytes
        self._received_bytes = sum(received_bytes[each] for each in self.sources)
        given_bytes = self._received_bytes - before
        # What a peer should have given, and did not, the storage gives without having been asked
        self.released_bytes = max(self.released_bytes, self._received_bytes)
        self._is_giving = was_awaited and (self._is_giving or given_bytes > 0)
        self.has_given = self.has_given or given_bytes > 0
        if self._is_giving:
            self._given.append((elapsed_s, given_bytes))
            while len(self._given) > 1 and sum(each for each, _ in self._given) > MEASURED_S:
                self._given.popleft()
        return given_bytes


class Speeds:
    """How fast the storage and the peers give, all together.

    Attributes:
        of_peers: Bytes per second of all peers, over `measured_s` until now.
    """

    def __init__(self, storage: Flow, peers: Mapping[str, Flow]) -> None:
        self._storage, self._peers = storage, peers
        self._given = deque([(time.monotonic(), 0)])  # when peers had given how many bytes
        self.of_peers, self.measured_s = 0.0, 0.0

    def look(self, now: float, received_bytes: Sequence[int], memory_s: float) -> None:
        """See what each source of the engine has given; the speed of the peers is that of so long a time."""
        self._storage.look(now, received_bytes)
        given_bytes = sum(flow.look(now, received_bytes) for flow in self._peers.values())
        self._given.append((now, self._given[-1][1] + given_bytes))
        while len(self._given) > 2 and self._given[1][0] < now - memory_s:
            self._given.popleft()
        (since, before), (_, after) = self._given[0], self._given[-1]
        self.measured_s = now - since
        self.of_peers = (after - before) / self.measured_s if after > before else 0.0

    def left_s(self, held_back_bytes: int) -> float:
        """Return how long the rest takes at these speeds: what was not released, and what has not arrived."""
        flows = [self._storage, *self._peers.values()]
        left_bytes = held_back_bytes + sum(flow.awaited_bytes for flow in flows)
        speed = sum(flow.speed for flow in flows)
        return left_bytes / speed if speed else math.inf
