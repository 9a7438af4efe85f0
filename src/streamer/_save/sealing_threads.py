"""Threads that encrypt runs of pieces, while the thread that makes the parts of a file hands on the runs before.

Guarantees: after `SealingThreads.close`, no thread reads the memory of a tensor. A run whose thread failed raises the
failure where it is taken. Without a free processor, or if the system gives no thread, the caller encrypts.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from streamer import _native

__all__ = ["SealedRun", "SealingThreads"]

WORTH_A_THREAD_BYTES = 1 << 20  # to hand over less takes longer than to encrypt it


class SealedRun:
    """A run of whole pieces that is encrypted once."""

    def __init__(self, cipher: _native.PieceCipher, plain: memoryview, position: int, first: int) -> None:
        self._cipher, self._position, self._first = cipher, position, first
        self._plain: memoryview | None = plain
        self._sealed: tuple[_native.Memory, bytes] | None = None
        self._failure: BaseException | None = None
        self._done = threading.Event()

    def encrypt(self) -> None:
        """Encrypt the run; called once."""
        assert self._plain is not None
        try:
            self._sealed = self._cipher.encrypt(self._plain, self._position, self._first)
        except BaseException as error:
            self._failure = error
        finally:
            self._plain = None
            self._done.set()

    def wait(self) -> None:
        """Wait until the bytes of the tensor are not needed any more; encryption waits for nothing."""
        self._done.wait()

    def take(self) -> tuple[memoryview, bytes]:
        """Wait for the run; return its encrypted bytes, and the tags of its pieces."""
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        assert self._sealed is not None
        data, tags = self._sealed
        return memoryview(data), tags


class SealingThreads:
    """Threads that encrypt the runs of one file; they start when they are needed."""

    def __init__(self, count: int) -> None:
        self._count, self._threads = count, list[threading.Thread]()
        self._waiting: SimpleQueue[SealedRun | None] = SimpleQueue()

    def put(self, run: SealedRun, size_bytes: int) -> None:
        """Encrypt a run on a thread, or here if it is small."""
        if size_bytes < WORTH_A_THREAD_BYTES or not self._started():
            run.encrypt()
        else:
            self._waiting.put(run)

    def close(self) -> None:
        """Join the threads; runs that were put are encrypted before."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _started(self) -> bool:
        """Start another thread, as long as there may be more; say whether there is any."""
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"streamer-seal{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left: those that run encrypt this run, too
                self._count = len(self._threads)
            else:
                self._threads.append(thread)
        return bool(self._threads)

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            run.encrypt()
            del run  # which may hold memory, while this thread waits
