"""Limits the time that a request waits for its answer: the probe of an outage is brief, and is sent once.

The sender of a request reads the limit from the context, which asyncio and threads pass on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

__all__ = ["first_byte_limit_s", "limited"]

_limit_s: ContextVar[float] = ContextVar("first_byte_limit_s", default=inf)


@contextmanager
def limited(first_byte_s: float) -> Iterator[None]:
    """Limit the requests inside the block.

    Args:
        first_byte_s: Seconds until the answer begins; infinite for a request that is no probe.
    """
    token = _limit_s.set(first_byte_s)
    try:
        yield
    finally:
        _limit_s.reset(token)


def first_byte_limit_s() -> float:
    """Return the limit of the current request in seconds; finite if it is a probe."""
    return _limit_s.get()
