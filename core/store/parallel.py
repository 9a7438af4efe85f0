"""Small requests made at the same time, on threads that nobody has to wait for.

Guarantees: answers come in the order of the questions, or the first failure among them is raised. A caller that is
interrupted leaves at once: a thread inside a request ends with that request's own time-out, starts no other, and keeps
no interpreter from exiting (those of `concurrent.futures` do). Where no thread is to be had, the caller works alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["AnswerTimeoutError", "in_parallel"]

Question = TypeVar("Question")
Answer = TypeVar("Answer")

MAX_THREADS = 16  # a store answers many at a time; more would only wait for each other here
AT_ONCE_S = 0.001  # local files need no second thread, and starting sixteen takes longer than asking them


def in_parallel(
    ask: Callable[[Question], Answer], questions: Sequence[Question], *, role: str, give_up_at: float | None = None
) -> list[Answer]:
    """Ask all questions at the same time.

    Args:
        ask: Called from several threads.
        questions: One argument each.
        role: For the names of the threads.
        give_up_at: Monotonic time at which the caller leaves, as if it were interrupted.

    Raises:
        AnswerTimeoutError: not all were answered by then.

    Example:
        >>> in_parallel(len, ["a", "bb", "ccc"], role="example")
        [1, 2, 3]
    """
    if len(questions) <= 1 and give_up_at is None:
        return [ask(question) for question in questions]
    return _Asking(ask, questions).run(role, give_up_at)


class AnswerTimeoutError(Exception):
    """The caller has no more time."""


class _Asking(Generic[Question, Answer]):
    def __init__(self, ask: Callable[[Question], Answer], questions: Sequence[Question]) -> None:
        self._ask = ask
        self._questions = questions
        self._lock = threading.Lock()
        self._next = 0
        self._answers: dict[int, Answer] = {}
        self._failures: dict[int, BaseException] = {}

    def run(self, role: str, give_up_at: float | None) -> list[Answer]:
        threads = self._start(role)
        try:
            if not threads:
                self._work()
            for thread in threads:
                thread.join(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
                if thread.is_alive():
                    raise AnswerTimeoutError
        except BaseException:  # Ctrl-C
            with self._lock:
                self._next = len(self._questions)
            raise
        if self._failures:
            raise self._failures[min(self._failures)]
        return [self._answers[index] for index in range(len(self._questions))]

    def _start(self, role: str) -> list[threading.Thread]:
        threads = []
        for number in range(min(MAX_THREADS, len(self._questions))):
            thread = threading.Thread(target=self._work, name=f"streamer-{role}{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                break
            threads.append(thread)
            if number == 0:
                thread.join(AT_ONCE_S)
            if not thread.is_alive():
                break
        return threads

    def _work(self) -> None:
        while (index := self._take()) is not None:
            try:
                self._answers[index] = self._ask(self._questions[index])
            except BaseException as error:  # raised again in `run`
                self._failures[index] = error
                with self._lock:
                    self._next = len(self._questions)

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= len(self._questions):
                return None
            self._next += 1
            return self._next - 1
