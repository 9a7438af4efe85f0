"""Sends the parts of one object, several at a time.

Guarantees: at most so many parts exist as are sent at a time, and one that is being made. When `send_parts` returns or
raises, no call of `Upload.send` is running, unless a second interrupt ended the wait for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from streamer.core.store.uploads import Upload

__all__ = ["send_parts"]


def send_parts(upload: Upload, parts: Iterable[memoryview], most_parallel: int, on_sent: Callable[[int], None]) -> None:
    """Send the parts of an object, and wait until all are sent.

    Args:
        upload: Of the object.
        parts: In their order; they are made on this thread.
        most_parallel: Most parts that are sent at a time.
        on_sent: Called on this thread with the number of bytes of each part that has been sent.

    Raises:
        BaseException: of the first part that could not be made or sent, or of `on_sent`.
    """
    sender = _Sender(upload, max(1, min(most_parallel, upload.parallel_parts)), on_sent)
    try:
        offset_bytes = 0
        for part in parts:
            sender.put(offset_bytes, part)
            offset_bytes += part.nbytes
        sender.wait_until_fewer(1)
    finally:
        sender.close()


class _Sender:
    """Threads that send, which end with `close`."""

    def __init__(self, upload: Upload, workers: int, on_sent: Callable[[int], None]) -> None:
        self._upload, self._workers, self._on_sent = upload, workers, on_sent
        self._has_news = threading.Condition()  # guards the next five
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._unsent = 0
        self._sent: deque[int] = deque()  # bytes of parts that the caller does not know of yet
        self._failure: BaseException | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def put(self, offset_bytes: int, part: memoryview) -> None:
        """Send a part as soon as a thread is free."""
        self.wait_until_fewer(self._workers)
        with self._has_news:
            self._waiting.append((offset_bytes, part))
            self._unsent += 1
            self._has_news.notify_all()
        if len(self._threads) < self._workers:
            self._start()

    def wait_until_fewer(self, count: int) -> None:
        """Wait until fewer parts are unsent, and tell the caller of those that have been sent."""
        while True:
            with self._has_news:
                self._has_news.wait_for(lambda: self._sent or self._failure or self._unsent < count)
                if self._failure is not None:
                    raise self._failure
                sent_bytes = [self._sent.popleft() for _ in range(len(self._sent))]
                is_reached = self._unsent < count
            for size_bytes in sent_bytes:
                self._on_sent(size_bytes)
            if is_reached:
                return

    def close(self) -> None:
        """Send nothing more, and wait for the calls that are running."""
        with self._has_news:
            self._is_closed = True
            self._waiting.clear()
            self._has_news.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"streamer-upload{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: those that run send this part, too
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (part := self._take()) is not None:
            try:
                self._upload.send(*part)
                size_bytes = part[1].nbytes
            except BaseException as error:
                with self._has_news:
                    self._failure = self._failure or error
                    self._has_news.notify_all()
                return
            del part  # which may hold memory, while this thread waits
            with self._has_news:
                self._unsent -= 1
                self._sent.append(size_bytes)
                self._has_news.notify_all()

    def _take(self) -> tuple[int, memoryview] | None:
        with self._has_news:
            self._has_news.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting.popleft() if self._waiting else None
