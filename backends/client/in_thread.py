"""Runs a blocking function beside an event loop that other libraries use, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread of its own, which no exit of the program waits for; its exceptions pass through.

    The function sees the context variables of the caller.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # so that a caller who no longer waits does not cancel it
    context = copy_context()

    def run() -> None:
        try:
            result.set_result(context.run(function))
        except BaseException as error:  # handed over, whatever it is
            result.set_exception(error)

    Thread(target=run, name="streamer-request", daemon=True).start()
    return await asyncio.wrap_future(result)
