"""How far a pull reads ahead: about the bytes of one second, so that a stopped pull loses little more. Pure.

A pull begins with few bytes in flight. If they arrive in less than a second, more bytes may be in flight, at most eight
times as many in one step. A fast line is fully used after three or four answers.
"""

from __future__ import annotations

__all__ = ["FIRST_BYTES", "Ahead"]

FIRST_BYTES = 256 << 10  # a line of 64 kB/s delivers as much in four seconds, so a pull stopped every five advances
GROWTH = 8  # at most: the first bytes may come from a buffer, faster than the line
AHEAD_S = 1.0


class Ahead:
    """Measures how fast bytes arrive.

    Args:
        most_bytes: The maximum in flight.
        now: Time in seconds at which reading begins.

    Attributes:
        bytes: How many bytes may be in flight now.
    """

    def __init__(self, most_bytes: int, now: float) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = self.bytes = min(FIRST_BYTES, most_bytes)
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
