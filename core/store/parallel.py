"""Calls on threads that an interrupted caller does not wait for: several at once, or one beside an event loop.

Guarantees: results are in the order of the arguments, or the first failure among them is raised. An interrupted caller
returns at once: a thread inside a request ends with that request's own time-out, sends no other request, and does not
delay the interpreter's exit (threads of `concurrent.futures` do). If the system can start no thread, the caller of
`in_parallel` sends the requests itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamer.core.conditions import Condition
from streamer.core.errors import OutOfMemoryError

if TYPE_CHECKING:
    import asyncio

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# A thousand requests of one object each take 16 round trips; more threads would wait for each other here.
MOST_AT_ONCE = 64
MOST_LARGE = 16  # for calls that read a whole file each
# Threads at first; the number doubles once each thread has had an answer. A server with few processes makes all other
# connections wait until the first ones are closed.
FIRST_AT_ONCE = 16
# If one thread makes `AT_ONCE` calls in this time, the calls do not wait for answers: they stat files or sign URLs.
# More threads would only compete for the interpreter: a thousand signatures took four times as long.
AT_ONCE_S = 0.001
AT_ONCE = 4
# If starting a thread takes this long, the running threads wait for the interpreter, not for answers: each holds it for
# 5 ms. Without this limit, starting sixty-four threads took half a minute on a busy machine.
BUSY_S = 0.1

NO_THREAD_HINT = (
    "Raise the limit of threads (pids.max of the container, ulimit -u), or give the process more memory for their"
    " stacks: lower memory_limit_bytes"
)


def in_parallel(
    request: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    *,
    role: str,
    most: int = MOST_AT_ONCE,
    give_up_at: float | None = None,
) -> list[Result]:
    """Call a function with each of the arguments, at the same time.

    Example:
        >>> in_parallel(len, ["a", "bb", "ccc"], role="example")
        [1, 2, 3]
    """
    if len(arguments) <= 1 and give_up_at is None:
        return [request(argument) for argument in arguments]
    return _Requests(request, arguments, most).run(role, give_up_at)


class AnswerTimeoutError(Exception):
    """Not all requests were answered in time."""


class _Requests(Generic[Argument, Result]):
    def __init__(self, request: Callable[[Argument], Result], arguments: Sequence[Argument], most: int) -> None:
        self._request = request
        self._arguments = arguments
        self._most = most
        self._has_news = Condition()  # guards the next two attributes
        self._next = 0
        self._threads_with_answer = 0
        self._results: dict[int, Result] = {}
        self._failures: dict[int, BaseException] = {}

    def run(self, role: str, give_up_at: float | None) -> list[Result]:
        threads: list[threading.Thread] = []
        try:
            self._start(role, threads, give_up_at)
            if not threads:
                self._work()
            for thread in threads:
                thread.join(None if give_up_at is None else max(0.0, give_up_at - time.monotonic()))
                if thread.is_alive():
                    raise AnswerTimeoutError
        except BaseException:  # Ctrl-C
            self._take_no_more()
            raise
        if self._failures:
            raise self._failures[min(self._failures)]
        return [self._results[index] for index in range(len(self._arguments))]

    def _start(self, role: str, threads: list[threading.Thread], give_up_at: float | None) -> None:
        """Start threads as long as calls wait for their answers and some calls are left."""
        for number in range(min(self._most, len(self._arguments))):
            if number >= FIRST_AT_ONCE and number.bit_count() == 1:
                self._wait_for_answers(number, give_up_at)
            began = time.monotonic()
            if give_up_at is not None and began > give_up_at:
                return
            thread = threading.Thread(target=self._work, name=f"streamer-{role}{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                return
            threads.append(thread)
            is_busy = time.monotonic() - began > BUSY_S
            if number == 0:
                self._watch(thread, give_up_at)
            if is_busy or not thread.is_alive():
                return

    def _watch(self, thread: threading.Thread, give_up_at: float | None) -> None:
        """Let one thread work alone, as long as its calls do not wait for answers."""
        calls = -AT_ONCE
        while thread.is_alive() and len(self._results) - calls >= AT_ONCE:
            if give_up_at is not None and time.monotonic() > give_up_at:
                return
            calls = len(self._results)
            thread.join(AT_ONCE_S)

    def _wait_for_answers(self, threads: int, give_up_at: float | None) -> None:
        """Wait until this number of threads have had an answer, or all calls are taken."""
        timeout_s = None if give_up_at is None else give_up_at - time.monotonic()
        with self._has_news:
            self._has_news.wait_for(lambda: self._threads_with_answer == threads or self._is_all_taken(), timeout_s)

    def _work(self) -> None:
        has_answer = False
        while (index := self._take()) is not None:
            try:
                self._results[index] = self._request(self._arguments[index])
            except BaseException as error:  # raised again in `run`
                self._failures[index] = error
                self._take_no_more()
            if not has_answer:
                has_answer = True
                self._note_thread_with_answer()

    def _note_thread_with_answer(self) -> None:
        with self._has_news:
            self._threads_with_answer += 1
            self._has_news.notify()

    def _take(self) -> int | None:
        with self._has_news:
            if self._is_all_taken():
                return None
            self._next += 1
            if self._is_all_taken():
                self._has_news.notify()
            return self._next - 1

    def _take_no_more(self) -> None:
        with self._has_news:
            self._next = len(self._arguments)
            self._has_news.notify()

    def _is_all_taken(self) -> bool:
        return self._next >= len(self._arguments)


def no_thread_error() -> OutOfMemoryError:
    """Make the exception for a thread that Python could not start."""
    return OutOfMemoryError("the system gives no thread", hint=NO_THREAD_HINT)


async def in_thread(
    call: Callable[[], Result], *, role: str, discard: Callable[[Result], object] | None = None
) -> Result:
    """Await a call in a daemon thread, for which the exit of the program does not wait.

    Exceptions of the call pass through.
    """
    import asyncio  # noqa: PLC0415 (takes 20 ms, and its callers have it)

    loop, context = asyncio.get_running_loop(), copy_context()
    answer: asyncio.Future[Result] = loop.create_future()

    def start(work: Callable[[], object]) -> None:
        try:
            threading.Thread(target=work, name=f"streamer-{role}", daemon=True).start()
        except RuntimeError as error:
            raise no_thread_error() from error

    def run() -> None:
        try:
            result = context.run(call)
        except BaseException as error:
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(_fail, answer, error)
            return
        try:
            loop.call_soon_threadsafe(deliver, result)
        except RuntimeError:
            if discard is not None:
                discard(result)

    def deliver(result: Result) -> None:
        if not answer.done():
            answer.set_result(result)
        elif discard is not None:
            try:
                start(lambda: discard(result))
            except OutOfMemoryError:
                discard(result)

    start(run)
    return await answer


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
