"""Sends several parts at the same time, of one object or of several objects.

Guarantees: besides the parts that are being sent, only one part exists at a time: the one that is being made. After
`PartSender.close`, no call of `Upload.send` is running, unless a second interrupt ended the wait for it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from streamer.core.conditions import Condition
from streamer.core.store.uploads import Upload

Noted = Callable[[int], None]
Traced = Callable[..., AbstractContextManager[None]]  # is given the offset and the number of bytes of a part


class Sending(Protocol):
    """What a sender needs of an `Upload`."""

    parallel_parts: int

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part."""


class SenderClosedError(Exception):
    """Nothing is sent any more, because of a failure elsewhere or an interrupt."""


@dataclass
class PartStream:
    """The parts of one object, in their order."""

    upload: Sending
    on_sent: Noted
    most: int  # of its parts that are sent at a time
    unsent: int = 0
    sent: deque[int] = field(default_factory=deque)  # bytes of sent parts that were not reported yet
    failure: BaseException | None = None


class PartSender:
    """A context manager around threads that send parts; they start when they are needed."""

    def __init__(self, most_parallel: int, traced: Traced = lambda **_: nullcontext()) -> None:
        self.workers, self._traced = max(1, most_parallel), traced
        self._has_news = Condition()  # guards the next four attributes, and those of the streams
        self._waiting: deque[tuple[PartStream, int, memoryview]] = deque()
        self._places = self.workers + 1  # for parts that may be made
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()

    def __enter__(self) -> PartSender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, upload: Upload, parts: Iterable[memoryview], on_sent: Noted) -> None:
        """Send the parts of one object, and wait until all are sent. Several threads may call this at a time."""
        stream, offset_bytes, made = self.stream(upload, on_sent), 0, iter(parts)
        while True:
            self.take_place(stream)
            part: memoryview | None = None
            try:
                part = next(made, None)
            finally:
                if part is None:
                    self._give_place()
            if part is None:
                break
            self.put(stream, offset_bytes, part)
            offset_bytes += part.nbytes
            del part
        self.flush(stream)

    def stream(self, upload: Sending, on_sent: Noted) -> PartStream:
        """Begin with the parts of one object."""
        return PartStream(upload, on_sent, max(1, min(self.workers, upload.parallel_parts)))

    def put(self, stream: PartStream, offset_bytes: int, part: memoryview) -> None:
        """Send a part, for which a place was taken, as soon as a thread is free."""
        self._wait(stream, lambda: stream.unsent < stream.most)
        self._put(stream, offset_bytes, part)

    def flush(self, stream: PartStream) -> None:
        """Wait until all parts of an object are sent."""
        self._wait(stream, lambda: not stream.unsent)

    def close(self) -> None:
        """Send nothing more, and wait for the calls that are running; in a forked process, none is."""
        if os.getpid() != self._process:  # a thread that is not there may hold the lock
            return
        try:
            self.stop()
        except BaseException:  # an interrupt, which must leave no thread waiting
            self.stop()
            raise
        for thread in self._threads:
            thread.join()

    def check_open(self) -> None:
        """Raise SenderClosedError if nothing is sent any more."""
        with self._has_news:
            if self._is_closed:
                raise SenderClosedError

    def stop(self) -> None:
        """Send nothing more."""
        with self._has_news:
            self._is_closed = True
            self._waiting.clear()
            self._has_news.notify_all()

    def _wait(self, stream: PartStream, is_reached: Callable[[], bool]) -> None:
        """Wait on behalf of a stream, and report parts that have been sent to its caller."""
        while True:
            with self._has_news:
                self._has_news.wait_for(lambda: stream.sent or stream.failure or self._is_closed or is_reached())
                if stream.failure is not None:
                    raise stream.failure
                if self._is_closed:
                    raise SenderClosedError
                sent_bytes = [stream.sent.popleft() for _ in range(len(stream.sent))]
                is_over = is_reached()
            for size_bytes in sent_bytes:
                stream.on_sent(size_bytes)
            if is_over:
                return

    def _put(self, stream: PartStream, offset_bytes: int, part: memoryview) -> None:
        """Send a part as soon as a thread is free."""
        with self._has_news:
            self._waiting.append((stream, offset_bytes, part))
            stream.unsent += 1
            self._has_news.notify_all()
            if len(self._threads) < self.workers:
                self._start()

    def take_place(self, stream: PartStream) -> None:
        """Wait until another part may be made."""
        while True:
            self._wait(stream, lambda: self._places > 0)
            with self._has_news:
                if self._places > 0:
                    self._places -= 1
                    return

    def _give_place(self) -> None:
        """Let another part be made."""
        with self._has_news:
            self._places += 1
            self._has_news.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"streamer-upload{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: the running threads send this part, too
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            stream, offset_bytes, part = taken
            del taken
            try:
                with self._traced(offset=offset_bytes, bytes=part.nbytes):
                    stream.upload.send(offset_bytes, part)
                size_bytes = part.nbytes
            except BaseException as error:
                with self._has_news:
                    stream.failure = stream.failure or error
                    self._has_news.notify_all()
                return
            del part  # it may hold memory while this thread waits
            with self._has_news:
                self._places += 1
                stream.unsent -= 1
                stream.sent.append(size_bytes)
                self._has_news.notify_all()

    def _take(self) -> tuple[PartStream, int, memoryview] | None:
        with self._has_news:
            self._has_news.wait_for(lambda: self._waiting or self._is_closed)
            return self._waiting.popleft() if self._waiting else None
