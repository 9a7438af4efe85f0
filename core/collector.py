"""Pauses Python's garbage collector while many objects are made that stay: modules, entries of headers, tensors.

While they are made, the collector looks through all that a program holds, again and again: after ``import torch``,
100 ms each time. That was half of the time from the first call of `streamer.load` to the first request of a client of
S3, and a quarter of a load of 100 000 tensors. No pause contains a wait for a server or a disk.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]

_lock = threading.Lock()
_pauses = 0
_is_resumed = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector for the time of a block, in all threads; it goes on if it was on before.

    Example:
        >>> with collector_paused():
        ...     gc.isenabled()
        False
    """
    global _pauses, _is_resumed  # noqa: PLW0603 (the collector is the process's)
    with _lock:
        if _pauses == 0:
            _is_resumed = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _is_resumed:
                gc.enable()
