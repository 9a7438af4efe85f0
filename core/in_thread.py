"""Runs a blocking call beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar

from streamer.core.errors import OutOfMemoryError

__all__ = ["in_thread"]

Result = TypeVar("Result")


async def in_thread(
    call: Callable[[], Result], *, role: str, discard: Callable[[Result], object] | None = None
) -> Result:
    """Await a call in a daemon thread, for which the exit of the program does not wait.

    Exceptions of the call pass through.

    Raises:
        OutOfMemoryError: the system gives no thread.

    Args:
        call: The call; it runs in the context of the caller.
        role: Role of the thread, for its name.
        discard: Called with the result, in a thread, if the caller no longer waits for it.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    answer: asyncio.Future[Result] = loop.create_future()

    def start(work: Callable[[], object]) -> None:
        try:
            Thread(target=work, name=f"streamer-{role}", daemon=True).start()
        except RuntimeError as error:
            hint = "Raise the limit of threads (pids.max of the container, ulimit -u)"
            raise OutOfMemoryError("the system gives no thread", hint=hint) from error

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
