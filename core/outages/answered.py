"""What has been answered of a question of several requests, while another of them is sent again.

A folder of a web server is an index page and a request for each shard; one of an object store is several pages. If the
whole of it began anew whenever one of these is refused, a server that refuses each third request would never answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["Answered", "answered_so_far", "one_question"]

Answer = TypeVar("Answer")


class Answered:
    """The answers to parts of one question. Thread-safe if no two threads ask for the same part at the same time."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def once(self, request: Callable[..., Answer], *part: Hashable) -> Answer:
        """Return the answer of a function about a part, its arguments; call it only if it has not answered yet."""
        if (request, part) not in self._answers:
            self._answers[request, part] = request(*part)
        answer: Answer = self._answers[request, part]
        return answer

    def forget(self) -> None:
        """Let go of the answers, and of what was asked for them."""
        self._answers.clear()


_of_question: ContextVar[Answered | None] = ContextVar("answered", default=None)


@contextmanager
def one_question() -> Iterator[None]:
    """Keep what is answered inside the block."""
    answered = Answered()
    token = _of_question.set(answered)
    try:
        yield
    finally:
        _of_question.reset(token)
        answered.forget()  # asyncio keeps the context of a request for as long as its connection lives


def answered_so_far() -> Answered:
    """Return the answers of the question under way; empty ones if there is none."""
    return _of_question.get() or Answered()
