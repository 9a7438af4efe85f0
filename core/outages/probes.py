"""How long a request may wait for its answer: one that asks whether a server is back is brief, and sent once.

Whoever sends a request reads it from the context, which asyncio and threads carry along.
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
        first_byte_s: Until the answer begins, in seconds; infinite for a request that is no probe.
    """
    token = _limit_s.set(first_byte_s)
    try:
        yield
    finally:
        _limit_s.reset(token)


def first_byte_limit_s() -> float:
    """Return the limit of the request under way in seconds; finite if it is a probe."""
    return _limit_s.get()
