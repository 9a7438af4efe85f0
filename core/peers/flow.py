"""How fast a source gives what was released to it, and how much more is to be released."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence

AHEAD_S = 0.5  # released ahead of what has arrived, as time at the speed so far
GROWTH = 4  # at most so much more than what has arrived
MEASURED_S = 1.0  # the time that the speed is measured over


class Flow:
    """A peer, or the storage.

    Args:
        sources: Their numbers in the engine.
        landed_bytes: What each source of the engine has given before.

    Attributes:
        released_bytes: What was asked for.
        has_given: Whether it has given anything.
    """

    def __init__(self, sources: Collection[int], landed_bytes: Sequence[int] | None = None) -> None:
        self.sources = frozenset(sources)
        self._landed_bytes = 0 if landed_bytes is None else sum(landed_bytes[each] for each in sources)
        self.released_bytes, self.has_given = self._landed_bytes, False
        self._looked = time.monotonic()
        self._given: deque[tuple[float, int]] = deque()  # in so many seconds, so many bytes
        self._is_giving = False  # the time before its first byte is no measure of its speed

    @property
    def is_waited_for(self) -> bool:
        """Whether something has not arrived yet."""
        return self.released_bytes > self._landed_bytes

    @property
    def speed(self) -> float:
        """Bytes per second, while it had something to give; 0 if that is not known."""
        elapsed_s = sum(each for each, _ in self._given)
        return sum(size_bytes for _, size_bytes in self._given) / elapsed_s if elapsed_s else 0.0

    @property
    def room_bytes(self) -> float:
        """How much more is to be released now."""
        ahead_bytes = min(AHEAD_S * self.speed, GROWTH * self._landed_bytes)  # few bytes tell little about the speed
        return max(1, ahead_bytes) - (self.released_bytes - self._landed_bytes)

    def look(self, now: float, landed_bytes: Sequence[int]) -> int:
        """See what each source of the engine has given; return what came of this one since the last look."""
        elapsed_s, self._looked = now - self._looked, now
        was_waited_for, before = self.is_waited_for, self._landed_bytes
        self._landed_bytes = sum(landed_bytes[each] for each in self.sources)
        given_bytes = self._landed_bytes - before
        # What a peer should have given, and did not, the storage gives without having been asked
        self.released_bytes = max(self.released_bytes, self._landed_bytes)
        self._is_giving = was_waited_for and (self._is_giving or given_bytes > 0)
        self.has_given = self.has_given or given_bytes > 0
        if self._is_giving:
            self._given.append((elapsed_s, given_bytes))
            while len(self._given) > 1 and sum(each for each, _ in self._given) > MEASURED_S:
                self._given.popleft()
        return given_bytes
