"""Ends a session: reading stops, threads are joined, and memory to which nothing writes any more is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from streamer.core.options.machine import AnnouncedLoad

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.python_readers import PythonReaders
    from streamer.core.tensors.device_tensors import DeviceTensors
    from streamer.core.tensors.resize_lock import ResizeLock

__all__ = ["SessionEnd", "Targets"]

LEAST_BYTES_TO_ANNOUNCE = 256 << 20  # a smaller load ends before other loads could adapt to it
# Memory that a hanging device may still write, by its id; the end of the process frees it with the device's context.
_LEFT_TO_DEVICES: dict[int, Targets] = {}


class Targets(NamedTuple):
    """The memory to which a session writes.

    Attributes:
        owners: The owners of the caller's tensors.
        lock: The lock of the memory of these tensors.
        device_tensors: The tensors on devices that the session allocated.
    """

    owners: object
    lock: ResizeLock | None
    device_tensors: DeviceTensors | None


class SessionEnd:
    """Ends one session; while it runs, its load is announced to others of this machine.

    Args:
        engine: The engine of the session.
        readers: The session's threads in Python.
        targets: The memory to which engine and readers write.
        span_bytes: Number of bytes that the session reads.
        on_end: Called before reading stops.
    """

    def __init__(
        self,
        engine: _native.Session,
        readers: PythonReaders,
        targets: Targets,
        span_bytes: int,
        on_end: Callable[[], object],
    ) -> None:
        self._engine, self._readers, self._targets, self._on_end = engine, readers, targets, on_end
        self._announced = AnnouncedLoad() if span_bytes >= LEAST_BYTES_TO_ANNOUNCE else None

    def __call__(self) -> None:
        """End the session. It may be called again: `engine.close` waits for the join that another thread has begun."""
        self._on_end()
        self._engine.close()
        if self._announced is not None:
            self._announced.end()
        is_joined = self._readers.join()
        if self._engine.is_forked():
            return
        if self._engine.has_abandoned_copies():
            _LEFT_TO_DEVICES[id(self._targets)] = self._targets
        elif is_joined:  # a reader that still runs keeps the memory to which it writes
            if self._targets.lock is not None:
                self._targets.lock.release()
            if self._targets.device_tensors is not None:
                self._targets.device_tensors.free_all()
