"""Runs a blocking function beside an event loop that other libraries use, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread of its own, which no exit of the program waits for; its exceptions pass through.

    The function sees the context variables of the caller.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    result: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle, value = result.set_result, context.run(function)
        except BaseException as error:  # handed over, whatever it is
            settle, value = result.set_exception, error
        try:
            loop.call_soon_threadsafe(lambda: result.done() or settle(value))
        except RuntimeError:  # the loop was closed meanwhile, and nobody waits
            return

    Thread(target=run, name="streamer-request", daemon=True).start()
    return await result
