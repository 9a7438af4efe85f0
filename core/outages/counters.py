"""Counts what the engine's session of a load does not: bytes of an answer, failures while locating, bytes of readers.

A request may be made on one thread and read on another thread's event loop, which has the caller's context variables.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

# The engine's counters that add up over the stages of a load.
_SUMMED = ("http_requests", "retries", "hedges", "credential_refreshes", "outages", "waited_us", "probes")


class ReceivedBytes:
    """The count of one request, including its retries and further pages."""

    def __init__(self) -> None:
        self.count = 0  # number of bytes of bodies
        self.login = ""  # what has to end before the request can be sent, such as a program that gives credentials


_received: ContextVar[ReceivedBytes | None] = ContextVar("received", default=None)


@contextmanager
def counting(received: ReceivedBytes) -> Iterator[None]:
    """Count the bytes that the requests inside the block receive."""
    token = _received.set(received)
    try:
        yield
    finally:
        _received.reset(token)


def note_bytes(count: int) -> None:
    """Add bytes of a body to the count of the current request, if there is one."""
    received = _received.get()
    if received is not None:
        received.count += count


@contextmanager
def awaiting_login(what: str) -> Iterator[None]:
    """Note, in a load that gives up waiting, that the current request waits for this."""
    received = _received.get() or ReceivedBytes()
    received.login = what
    try:
        yield
    finally:
        received.login = ""


class PackedBytes:
    """The bytes that Python's readers of other formats unpack. Thread-safe.

    Attributes:
        unpacked_bytes: Bytes that they gave to the session that reads the tensors.
        packed_bytes: Bytes of files that they read for these.
        cached_bytes: The part of `packed_bytes` that was in the cache of this machine.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin to count; what was read for an index does not count."""
        self.unpacked_bytes = self.packed_bytes = self.cached_bytes = 0

    def add_unpacked(self, count: int) -> None:
        """Count bytes that a reader gave."""
        with self._lock:
            self.unpacked_bytes += count

    def add_packed(self, count: int, cached_bytes: int) -> None:
        """Count bytes of a file that a reader read, and those of them that were in the cache."""
        with self._lock:
            self.packed_bytes += count
            self.cached_bytes += cached_bytes


class EarlierCounters:
    """The sums of one load."""

    def __init__(self) -> None:
        self.packed = PackedBytes()  # what readers of other formats read while the tensors are read
        self._sums: Counter[str] = Counter()

    def add(self, stats: Mapping[str, int]) -> None:
        """Add the counters of a session, or of the lookup before it, which only has some of them."""
        self._sums.update({name: stats[name] for name in _SUMMED if name in stats})

    def added_to(self, stats: Mapping[str, int]) -> dict[str, int]:
        """Return the counters of the session that reads the tensors, with the earlier counters added.

        Example:
            >>> earlier = EarlierCounters()
            >>> earlier.add({"http_requests": 2, "items_delivered": 2})
            >>> earlier.added_to({"http_requests": 3, "items_delivered": 7})
            {'http_requests': 5, 'items_delivered': 7}
        """
        return {**stats, **{name: stats[name] + self._sums[name] for name in _SUMMED if name in stats}}
