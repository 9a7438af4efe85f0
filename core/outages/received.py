"""What has come of the answer to a question that is still waited for: whoever asks tells of it, whoever reads counts.

A question is asked on one thread and read on another's event loop, which carries the context variables of the asker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Heard", "hearing", "note_bytes"]


@dataclass(eq=False)
class Heard:
    """Of one question, its further attempts and pages included.

    Attributes:
        received_bytes: Of bodies.
    """

    received_bytes: int = 0


_heard: ContextVar[Heard | None] = ContextVar("heard", default=None)


@contextmanager
def hearing(heard: Heard) -> Iterator[None]:
    """Have counted what comes of the questions asked inside the block."""
    token = _heard.set(heard)
    try:
        yield
    finally:
        _heard.reset(token)


def note_bytes(count: int) -> None:
    """Count bytes of a body that have come, where anybody wants to know."""
    heard = _heard.get()
    if heard is not None:
        heard.received_bytes += count
