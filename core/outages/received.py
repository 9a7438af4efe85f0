"""Counts the bytes of an answer that have arrived while its caller still waits; error messages report the count.

A request may be made on one thread and read on another thread's event loop, which has the caller's context variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["ReceivedBytes", "counting", "note_bytes"]


@dataclass(eq=False)
class ReceivedBytes:
    """The count of one request, including its retries and further pages.

    Attributes:
        count: Number of bytes of bodies.
    """

    count: int = 0


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
