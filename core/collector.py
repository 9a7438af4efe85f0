"""Keeps Python's garbage collector from scanning all objects of a program while a load makes many objects.

The new objects stay, so a scan frees nothing: after ``import torch``, each scan takes 100 ms. From the first call of
`streamer.load` to the first request of an S3 client, scans took half of the time. In a load of 100 000 tensors they
took a third.

The collector pauses during a block that does not wait, such as making the tensors of a batch. While a load waits for a
server or a disk, the program's own thresholds hold. Only the thresholds are changed, because the program decides
whether the collector is enabled; thresholds that the program sets meanwhile are kept. A forked child starts with the
program's thresholds. If a library itself collects repeatedly, `past_frozen` makes it scan only new objects.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30  # new objects; no load makes as many


class _Collector:
    """The collector's thresholds, as long as a block in any thread needs other thresholds than the program's."""

    def __init__(self) -> None:
        self._pauses = 0  # number of running blocks
        self._before = gc.get_threshold()
        self._forks = 0  # number of forks since the first process
        self._lock = threading.RLock()  # a handler of a signal may load, too

    @contextmanager
    def paused(self) -> Iterator[None]:
        entered_in = None
        try:  # begins before the count, because Ctrl-C may come at any moment
            with self._lock:
                self._count(1)
                entered_in = self._forks
            yield
        finally:
            with self._lock:
                if entered_in == self._forks:
                    self._count(-1)

    def forget(self) -> None:
        """Undo the changes in a forked child, which does not have the threads that needed them."""
        self._lock = threading.RLock()
        self._forks += 1
        self._count(-self._pauses)

    def _count(self, pauses: int) -> None:
        self._pauses += pauses
        current = gc.get_threshold()
        if current[0] != NEVER:  # our value: a program may have saved and restored it
            self._before = current
        first, second, third = self._before
        wanted = (NEVER if first and self._pauses else first, second, third)  # 0 switches the collector off
        if wanted != current:
            gc.set_threshold(*wanted)


_collector = _Collector()
os.register_at_fork(after_in_child=_collector.forget)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector during a block, in all threads.

    Example:
        >>> with collector_paused():
        ...     gc.get_threshold()[0] == NEVER
        True
    """
    with _collector.paused():
        yield


@contextmanager
def past_frozen() -> Iterator[None]:
    """Collect once, and make a library's own ``gc.collect()`` in the block skip all objects that exist now.

    accelerate collects after each shard, and each time scans all objects of ``import torch``. If the program itself has
    frozen objects, they stay frozen, and nothing else is frozen or collected.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
