"""Keeps the answers to parts of one question, which consists of several requests, while another part is retried.

A folder of a web server takes an index page and a request for each shard; a folder of an object store takes several
pages. If one refused request restarted them all, a server that refuses each third request would never answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["Answered", "answered_so_far", "one_question"]

Answer = TypeVar("Answer")


class Answered:
    """The answers to parts of one question. Thread-safe if no two threads request the same part at the same time."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def once(self, request: Callable[..., Answer], *part: Hashable) -> Answer:
        """Return the result of a function for a part (its arguments); call it only if it has not returned one yet."""
        if (request, part) not in self._answers:
            self._answers[request, part] = request(*part)
        answer: Answer = self._answers[request, part]
        return answer

    def forget(self) -> None:
        """Drop the answers and their functions."""
        self._answers.clear()


_of_question: ContextVar[Answered | None] = ContextVar("answered", default=None)


@contextmanager
def one_question() -> Iterator[None]:
    """Keep the answers that arrive inside the block."""
    answered = Answered()
    token = _of_question.set(answered)
    try:
        yield
    finally:
        _of_question.reset(token)
        answered.forget()  # asyncio keeps the context of a request as long as its connection lives


def answered_so_far() -> Answered:
    """Return the answers of the current question; an empty `Answered` if there is none."""
    return _of_question.get() or Answered()
