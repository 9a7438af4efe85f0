"""Keeps Python's garbage collector from scanning all objects of a program while a load makes many objects.

The new objects stay, so a scan frees nothing: after ``import torch``, each scan takes 100 ms. From the first call of
`streamer.load` to the first request of an S3 client, scans took half of the time. In a load of 100 000 tensors they
took a quarter.

While a block does not wait, the collector pauses. While a block may wait for a server or a disk, other threads make
garbage, so the collector still runs, but seldom. Only its thresholds are changed, because the program decides whether
it is enabled; thresholds that the program sets meanwhile are kept. A forked child starts with the program's thresholds.
If a library itself collects repeatedly, `past_frozen` makes it scan only new objects.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["collector_paused", "collector_spared", "past_frozen"]

# Scans after 14 020 new objects instead of 700. A factor of 100 was only 3 to 6 % faster than this one.
SELDOM = 20
NEVER = 1 << 30  # new objects; no load makes as many

_Thresholds = tuple[int, int, int]


class _Collector:
    """The collector's thresholds, as long as a block in any thread needs other thresholds than the program's."""

    def __init__(self) -> None:
        self._pauses = self._spares = 0  # numbers of running blocks
        self._before = gc.get_threshold()
        self._forks = 0  # number of forks since the first process
        self._lock = threading.RLock()  # a handler of a signal may load, too

    @contextmanager
    def held(self, pauses: int, spares: int) -> Iterator[None]:
        entered_in = None
        try:  # begins before the count, because Ctrl-C may come at any moment
            with self._lock:
                self._count(pauses, spares)
                entered_in = self._forks
            yield
        finally:
            with self._lock:
                if entered_in == self._forks:
                    self._count(-pauses, -spares)

    def forget(self) -> None:
        """Undo the changes in a forked child, which does not have the threads that needed them."""
        self._lock = threading.RLock()
        self._forks += 1
        self._count(-self._pauses, -self._spares)

    def _count(self, pauses: int, spares: int) -> None:
        self._pauses += pauses
        self._spares += spares
        current = gc.get_threshold()
        if current not in (self._paused, self._spared):  # our values: a program may have saved and restored them
            self._before = current
        wanted = self._paused if self._pauses else self._spared if self._spares else self._before
        if wanted != current:
            gc.set_threshold(*wanted)

    @property
    def _paused(self) -> _Thresholds:
        first, second, third = self._before
        return (NEVER if first else 0, second, third)  # 0 switches the collector off

    @property
    def _spared(self) -> _Thresholds:
        first, second, third = self._before
        return ((first + 1) * SELDOM if first else 0, second, third * SELDOM)  # unlikely to be set by the program


_collector = _Collector()
os.register_at_fork(after_in_child=_collector.forget)


def collector_paused() -> AbstractContextManager[None]:
    """Pause the collector during a block, in all threads.

    Example:
        >>> with collector_paused():
        ...     gc.get_threshold()[0] == NEVER
        True
    """
    return _collector.held(pauses=1, spares=0)


def collector_spared() -> AbstractContextManager[None]:
    """Let the collector run seldom during a block, in all threads.

    Example:
        >>> before = gc.get_threshold()
        >>> with collector_spared():
        ...     gc.get_threshold()[0] > before[0]
        True
    """
    return _collector.held(pauses=0, spares=1)


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
