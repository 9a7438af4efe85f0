"""Threads that write files while the engine reads: one thread writes a file, in order.

Guarantees: the first failure stops all writing, and is raised by `put` or `finish`. `close` waits at most a second for
a disk that hangs. A hanging thread does not delay the exit of the interpreter.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeAlias

from streamer.core.store.parallel import no_thread_error

__all__ = ["Destination", "Writers"]

THREADS = 4  # while one thread waits for a flush, others write
WAITING = 2  # pieces of at most 8 MiB in the queue of each thread
CLOSE_TIMEOUT_S = 1.0
SHOWN_EVERY_S = 0.2  # the interval at which progress is shown


class Destination(Protocol):
    """One file that is written."""

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""

    def finish(self) -> None:
        """Finish the file: all bytes are written."""

    def close(self) -> None:
        """Close the file."""


_Task: TypeAlias = tuple[Destination, memoryview | None] | None  # None ends the thread


class Writers:
    """Writes pieces in the order of `put`; one thread writes all pieces of a file."""

    def __init__(self, files: Sequence[Destination], on_wait: Callable[[], None]) -> None:
        self._files, self._on_wait = files, on_wait
        self._queues = [queue.Queue[_Task](WAITING) for _ in range(THREADS)]
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._threads = [
            threading.Thread(target=self._work, args=(each,), name=f"streamer-write{number}", daemon=True)
            for number, each in enumerate(self._queues)
        ]
        for started, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError as error:
                self._threads = self._threads[:started]
                self.close()
                raise no_thread_error() from error

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def put(self, number: int, data: memoryview | None) -> None:
        """Queue a piece for writing, or with None the end of the file."""
        self._check()
        self._put(self._queues[number % THREADS], (self._files[number], data))

    def finish(self) -> None:
        """Wait until everything is written; raises as `put`."""
        for each in self._queues:
            self._put(each, None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(SHOWN_EVERY_S)
                self._on_wait()
        self._check()

    def close(self) -> None:
        """Stop the threads, and close the files."""
        self._is_stopped = True
        for each in self._queues:
            try:
                each.put_nowait(None)
            except queue.Full:  # the thread is busy, and checks `_is_stopped` afterwards
                continue
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            for file in self._files:
                file.close()

    def _put(self, tasks: queue.Queue[_Task], task: _Task) -> None:
        """Put a task into a queue; wait for room, which takes long while a thread reads kept bytes."""
        while True:
            try:
                tasks.put(task, timeout=SHOWN_EVERY_S)
            except queue.Full:
                self._on_wait()
            else:
                return

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, tasks: queue.Queue[_Task]) -> None:
        while not self._is_stopped and (task := tasks.get()) is not None:
            if self._failure is not None:
                continue
            file, data = task
            del task
            try:
                if data is None:
                    file.finish()
                else:
                    file.write(data)
            except BaseException as error:  # raised again in `put` or `finish`
                self._failure = error
            del file, data
