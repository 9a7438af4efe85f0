"""Ends a session: reading stops, threads are joined, and memory to which nothing writes any more is freed.

A forked child refuses the calls of its parent's sessions: it has no engine threads, so a call would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from streamer import _native
from streamer.core.errors import EngineError
from streamer.core.load_status import LoadStatus
from streamer.core.options.machine import AnnouncedLoad

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.python_readers import PythonReaders
    from streamer.core.tensors.device_tensors import DeviceTensors
    from streamer.core.tensors.target_states import ResizeLock

LEAST_BYTES_TO_ANNOUNCE = 256 << 20  # a smaller load ends before other loads could adapt to it
# Memory that a hanging device may still write, by its id; the end of the process frees it with the device's context.
_LEFT_TO_DEVICES: dict[int, SessionMemory] = {}


class SessionMemory(NamedTuple):
    """The memory to which a session writes."""

    owners: object  # the owners of the caller's tensors
    lock: ResizeLock | None  # the lock of the memory of these tensors
    device_tensors: DeviceTensors | None  # the tensors on devices that the session allocated


class SessionEnd:
    """Ends one session; while it runs, its load is announced to others of this machine."""

    def __init__(
        self,
        engine: _native.Session,
        readers: PythonReaders | None,
        targets: SessionMemory,
        status: LoadStatus,
        on_end: Callable[[], object],
    ) -> None:
        self._engine, self._readers, self._targets, self._on_end = engine, readers, targets, on_end
        self._status = status
        self._announced = AnnouncedLoad() if status.total_bytes >= LEAST_BYTES_TO_ANNOUNCE else None

    def __call__(self) -> None:
        """End the session. It may be called again: `engine.close` waits for the join that another thread has begun."""
        self._on_end()
        self._engine.close()
        self._status.close()
        if self._announced is not None:
            self._announced.end()
        is_joined = self._readers is None or self._readers.join()
        if self._engine.is_forked():
            return
        if self._engine.has_abandoned_copies():
            _LEFT_TO_DEVICES[id(self._targets)] = self._targets
        elif is_joined:  # a reader that still runs keeps the memory to which it writes
            if self._targets.lock is not None:
                self._targets.lock.release()
            if self._targets.device_tensors is not None:
                self._targets.device_tensors.free_all()


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def of_one_process(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Raise the public `EngineError` in a forked child, in place of the engine's own class."""

    @wraps(method)
    def checked(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            return method(*arguments, **named)
        except _native.ForkedError as error:
            raise EngineError(str(error)) from None

    return checked
