"""Keeps Python's garbage collector from looking through all that a program holds while a load makes many objects.

They stay, so there is nothing to find: after ``import torch``, each look takes 100 ms. That was half of the time from
the first call of `streamer.load` to the first request of a client of S3, and a quarter of a load of 100 000 tensors.

Where nothing is waited for, the collector pauses. Where a server or a disk may be waited for, other threads go on, and
their garbage must not stay: the collector still runs, but seldom. A forked child has it as it was before either.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["collector_paused", "collector_spared"]

# After 14 000 new objects instead of 700. A hundred times was faster by another 3 % only.
SELDOM = 20


class _Change:
    """A change of the collector's state, for as long as any block of any thread needs it.

    Args:
        make: Makes the change, and returns what undoes it.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._undo: Callable[[], None] | None = None
        self._blocks = 0
        self._forks = 0  # that this process comes from
        self._lock = threading.RLock()  # a handler of a signal may load, too

    @contextmanager
    def held(self) -> Iterator[None]:
        entered_in = None
        try:  # here already, as Ctrl-C may come at any moment
            with self._lock:
                if self._blocks == 0:
                    self._undo = self._make()
                self._blocks += 1
                entered_in = self._forks
            yield
        finally:
            with self._lock:
                if entered_in == self._forks:
                    self._leave()

    def forget(self) -> None:
        """Undo the change in a forked child, where the threads that needed it are not."""
        self._lock = threading.RLock()
        self._forks += 1
        if self._blocks:
            self._blocks = 1
            self._leave()

    def _leave(self) -> None:
        self._blocks -= 1
        if self._blocks == 0 and self._undo is not None:
            self._undo()


def _pause() -> Callable[[], None]:
    was_enabled = gc.isenabled()
    gc.disable()
    return gc.enable if was_enabled else lambda: None


def _spare() -> Callable[[], None]:
    before = gc.get_threshold()
    spared = (before[0] * SELDOM, before[1], before[2] * SELDOM)
    gc.set_threshold(*spared)

    def undo() -> None:
        if gc.get_threshold() == spared:  # else the program has set it meanwhile
            gc.set_threshold(*before)

    return undo


_paused, _spared = _Change(_pause), _Change(_spare)
os.register_at_fork(after_in_child=_spared.forget)
os.register_at_fork(after_in_child=_paused.forget)


def collector_paused() -> AbstractContextManager[None]:
    """Pause the collector for the time of a block, in all threads; it goes on if it was on before.

    Example:
        >>> with collector_paused():
        ...     gc.isenabled()
        False
    """
    return _paused.held()


def collector_spared() -> AbstractContextManager[None]:
    """Let the collector run seldom for the time of a block, in all threads.

    Example:
        >>> before = gc.get_threshold()
        >>> with collector_spared():
        ...     gc.get_threshold()[0] == SELDOM * before[0]
        True
    """
    return _spared.held()
