"""Conditions and events that Ctrl-C leaves as they should be: with a free lock, whatever the main thread was doing.

Python raises `KeyboardInterrupt` between two steps of the main thread. `threading.Condition` takes and gives its lock
in methods of several steps: an interrupt between them leaves the lock taken, and every other thread waits for ever.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING


class Condition(threading.Condition):
    """A `threading.Condition` whose ``with`` statement calls the lock itself, which is one step."""

    def __init__(self) -> None:
        self._own_lock = threading.RLock()
        super().__init__(self._own_lock)

    if not TYPE_CHECKING:  # for a type checker, these are the methods of `threading.Condition`
        __enter__ = property(lambda self: self._own_lock.__enter__)
        __exit__ = property(lambda self: self._own_lock.__exit__)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Condition` does; the lock is taken again also if an interrupt ends the wait early."""
        try:
            return super().wait(timeout)
        except BaseException:
            try:
                self.notify(0)
            except RuntimeError:  # the lock was given back, and the wait had not begun
                self.acquire()
            raise


class Event:
    """A `threading.Event` with such a lock, which is never cleared."""

    def __init__(self) -> None:
        self._changed, self._is_set = Condition(), False

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake all threads that wait."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `set` is called; return whether it was."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)
