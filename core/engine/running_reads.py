"""Records which calls of `PythonSource.read_into` run, and since when, so that the consumer notices a call that hangs.

The thread of a call that hangs cannot be stopped; the load fails, and the thread stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamer.core.errors import StreamerError, TransferTimeoutError
from streamer.core.store.sources import PythonSource

if TYPE_CHECKING:
    from streamer.core.engine.native_session import SourceObject

__all__ = ["RunningReads", "owner_of"]


class RunningReads:
    """The calls of one session's threads. Thread-safe.

    Args:
        objects: The objects of the session.
    """

    def __init__(self, objects: Sequence[SourceObject]) -> None:
        self._objects = objects
        self._timeouts_s = [
            each.source.timeout_s if isinstance(each.source, PythonSource) else None for each in objects
        ]
        self._is_timed = any(timeout_s is not None for timeout_s in self._timeouts_s)
        self._calls: dict[int, tuple[float, int, int, int]] = {}  # by thread; one value is set and removed at a time

    def begin(self, source: int, begin: int, end: int) -> None:
        """Note that this thread calls a source."""
        if self._is_timed:
            self._calls[threading.get_ident()] = (time.monotonic(), source, begin, end)

    def end(self) -> None:
        """Note that the call of this thread has returned."""
        self._calls.pop(threading.get_ident(), None)

    def overdue(self) -> StreamerError | None:
        """Return the error for a call that has exceeded the time-out of its source; None if there is none."""
        if not self._is_timed:
            return None
        now = time.monotonic()
        for began, source, begin, end in list(self._calls.values()):
            timeout_s = self._timeouts_s[source]
            if timeout_s is not None and now - began > timeout_s:
                return _error(self._objects[source], timeout_s, (begin, end))
        return None


def owner_of(source_object: SourceObject) -> str:
    """Return the name of the plug-in or file system that reads an object, for messages."""
    owner = getattr(source_object.source, "owner", None)
    return f"read_into of {owner}" if owner else "the source"


def _error(late: SourceObject, timeout_s: float, byte_range: tuple[int, int]) -> TransferTimeoutError:
    return TransferTimeoutError(
        f"{owner_of(late)} did not return within {timeout_s:g} s",
        uri=late.uri,
        byte_range=byte_range,
        object_size=late.size_bytes,
        hint="Raise block_deadline_s in Options if the storage is this slow; else the plug-in hangs",
    )
