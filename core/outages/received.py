"""How many bytes of an answer have arrived while its caller still waits: clients count them, error messages tell them.

A request is made on one thread and read on another's event loop, which carries the caller's context variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["ReceivedBytes", "counting", "note_bytes"]


@dataclass(eq=False)
class ReceivedBytes:
    """Counts for one request, its further attempts and pages included.

    Attributes:
        count: Bytes of bodies.
    """

    count: int = 0


_received: ContextVar[ReceivedBytes | None] = ContextVar("received", default=None)


@contextmanager
def counting(received: ReceivedBytes) -> Iterator[None]:
    """Count what the requests inside the block receive."""
    token = _received.set(received)
    try:
        yield
    finally:
        _received.reset(token)


def note_bytes(count: int) -> None:
    """Add bytes of a body to the count of the request under way, where there is one."""
    received = _received.get()
    if received is not None:
        received.count += count
