"""The interface of stores to which large objects can be written, part by part, and removed.

It also marks what an upload writes into the metadata of its object, to know it again if the answer to the last request
is lost, and sends the parts of an object, several at a time.

An object shows up under its name only in `Upload.finish`, whole; a storage that cannot do that says so in its
documentation. So whoever writes many objects can send the bytes of all of them, and then show them one after the other.

Guarantees: at most so many parts exist as are sent at a time, and one that is being made. When `send_parts` returns or
raises, no call of `Upload.send` is running, unless a second interrupt ended the wait for it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

from streamer.core.errors import ChangedError
from streamer.core.store.sources import ObjectInfo

__all__ = ["Upload", "UploadMark", "UploadingStore", "changed_meanwhile", "send_parts"]


class Upload(Protocol):
    """One object that is being written. It ends with `finish` or `abort`.

    Attributes:
        parallel_parts: Most calls of `send` at a time; with 1, the parts come in their order.
        needs_equal_parts: Every part but the last has the size that `begin_upload` was told.
    """

    parallel_parts: int
    needs_equal_parts: bool

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part. After a failure that may pass, this is called again with the same part.

        Args:
            offset_bytes: Where the part begins in the object.
            part: Its bytes. The caller neither changes nor frees them until all parts are sent.

        Raises:
            AccessDeniedError: the object may not be written.
            StorageError: the part could not be sent.
        """

    def finish(self) -> None:
        """Let the object show up, whole. Nothing happens if that was done before.

        Raises:
            ChangedError: another program has written, replaced or removed the object meanwhile.
            StorageError: it could not.
        """

    def abort(self) -> None:
        """Remove what was sent. Does nothing to an object that has shown up.

        Raises:
            StorageError: it could not.
        """


@runtime_checkable
class UploadingStore(Protocol):
    """A `Store` to which large objects can be written in parts."""

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write one object; nothing shows up yet.

        Args:
            path: Of the object; folders above it are made where the storage has any.
            size_bytes: Of the whole object; with 0, `finish` comes without a part.
            part_bytes: Of each part but the last; the most of any part, if they need not be equal.
            replaced: The object that is there and is to be replaced, if it is still this version when the upload
                ends; None: there must be no object. A storage that has no such condition looks right before.

        Raises:
            UsageError: the storage cannot be written.
            AccessDeniedError: it may not be written.
            StorageError: it could not, or the bucket does not exist.
        """

    def remove(self, path: str) -> None:
        """Remove one object; nothing happens if there is none.

        Raises:
            AccessDeniedError: it may not be removed.
            StorageError: it could not.
        """


def changed_meanwhile(uri: str, replaced: ObjectInfo | None, *, status: int | None = None) -> ChangedError:
    """Make the error for an object that another program changed while this one uploaded it.

    Args:
        uri: Of the object, without secrets.
        replaced: As for `UploadingStore.begin_upload`.
        status: HTTP status of the refusal.
    """
    what = "written it" if replaced is None else "replaced or removed it"
    hint = "Make sure that one program at a time saves there, and save again"
    return ChangedError(f"another program has {what} meanwhile", uri=uri, hint=hint, status=status)


class UploadMark:
    """The mark of one upload.

    Args:
        name: Under which the storage's metadata holds it.
        replaced: What is to be replaced, or None.
        found: Requests the metadata of the object that is there; none of an absent one.

    Attributes:
        metadata: To write with the object.
    """

    def __init__(self, name: str, replaced: ObjectInfo | None, found: Callable[[], Mapping[str, str]]) -> None:
        self.metadata = {name: os.urandom(16).hex()}
        self._is_new, self._found = replaced is None, found
        self._may_be_there = False

    def note_last_request(self) -> None:
        """Note that the object shows up with the request that is now sent, whatever is heard of it."""
        self._may_be_there = True

    def is_there(self) -> bool:
        """Whether the object that is there is this upload's."""
        found = self._found()
        return all(found.get(name) == value for name, value in self.metadata.items())

    def is_to_be_removed(self) -> bool:
        """Whether a save that failed has left this object: it shows up, and has replaced none."""
        return self._may_be_there and self._is_new and self.is_there()


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
