"""Runs a blocking function beside an event loop that other libraries use, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar, cast

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread of its own, which no exit of the program waits for; its exceptions pass through.

    The function sees the context variables of the caller.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():  # nobody waits any more
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast(T, value))

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:  # handed over, whatever it is
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    Thread(target=run, name="streamer-request", daemon=True).start()
    return await result
