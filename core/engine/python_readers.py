"""Threads that fill the engine's blocks through `PythonSource.read_into`.

If a source returns too few or too many bytes, or raises, the error names the range. If a source keeps the buffer, the
error is a `PluginError`, because a late write would reach a tensor that was already handed out. The last bytes of an
object are handed on only after its source confirmed that the object did not change. However a thread ends, the load
fails or continues: it never hangs. Transient failures are left to the engine, as over HTTP: it retries the block, or
waits for the storage.

The consumer notices a call that hangs by the time since which it runs. Its thread cannot be stopped; the load fails,
and the thread stays.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from streamer.core.causes import forget_locals
from streamer.core.engine.plan import ReadPlan
from streamer.core.errors import PluginError, StorageError, StreamerError, TransferTimeoutError, TruncatedError
from streamer.core.outages.transient import is_transient
from streamer.core.store.parallel import no_thread_error
from streamer.core.store.sources import PythonSource

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.native_session import SourceObject


class RunningReads:
    """The calls of one session's threads. Thread-safe."""

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


COLLECTING_PAUSES_S = (0.0, 0.001, 0.01, 0.1)  # another thread's collection may take this long
JOIN_S = 1.0  # a read_into that hangs cannot be stopped: its daemon thread stays, and keeps the memory of its block


class LastAttemptError(Exception):
    """Raised by one of our own sources for an error that no further attempt can solve; it ends the load."""

    def __init__(self, failure: StreamerError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class PythonReaders:
    """The threads of one session that call a `PythonSource`.

    Attributes:
        failure: The first exception of a source that is not transient, as a `StreamerError`; None if there is none.
        transient: For each object, the last transient exception.
    """

    def __init__(
        self,
        engine: _native.Session,
        objects: Sequence[SourceObject],
        max_threads: int,
        keep_alive: object,
        plan: ReadPlan,
    ) -> None:
        self.failure: StreamerError | None = None
        self.transient: dict[int, StreamerError] = {}
        self._engine = engine
        self._objects = objects
        self._keep_alive = keep_alive
        self._threads: list[threading.Thread] = []
        self._join_by: float | None = None
        self._gates = {
            index: threading.BoundedSemaphore(each.source.max_threads)
            for index, each in enumerate(objects)
            if isinstance(each.source, PythonSource) and each.source.max_threads
        }
        self._count = max_threads
        self._missing_bytes = plan.bytes_by_source()
        self._counting = threading.Lock()
        self._running = RunningReads(objects)

    def start(self) -> None:
        """Start the threads."""
        for index in range(self._count):
            thread = threading.Thread(target=self._run, name=f"streamer-py{index}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the threads that did start do the work, as in the engine
                if self._threads:
                    return
                raise no_thread_error() from error
            self._threads.append(thread)

    def overdue(self) -> StreamerError | None:
        """Return the error for a source whose function has exceeded its time-out; None if there is none."""
        return self._running.overdue()

    def join(self) -> bool:
        """Wait until the threads have ended after the engine has stopped, at most a second from the first call on.

        Returns:
            Whether all threads have ended: a running thread may still write to memory.
        """
        self._join_by = self._join_by or time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, self._join_by - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (block := self._engine.take_python_block()) is not None:
            try:
                self._read(block)
            except BaseException as error:  # there is no memory, or another thread sent this exception
                forget_locals(error)
                self._fail(block, error, is_kept=True)

    def _read(self, block: _native.PythonBlock) -> None:
        """Finish the block or report its failure, whatever the source raises; otherwise the load would never end."""
        source = self._objects[block.source].source
        assert isinstance(source, PythonSource)
        if not source.takes_block and not block.make_buffer():
            return  # the engine reports that there is no memory
        references = sys.getrefcount(block)
        view = None if source.takes_block else memoryview(block)

        def is_shared() -> bool:
            return not _is_released(view) or sys.getrefcount(block) != references  # noqa: F821  it is deleted last

        error = _caught(self._fill, source, block, view)
        if error is not None:
            forget_locals(error)  # local variables would keep the load's memory as long as the error exists
        # A slice of the view refers to the block, not to the view. An exception that the source handled may hold a
        # slice in a reference cycle until garbage is collected; exceptions of futures do.
        is_kept = is_shared() and _is_true_without_garbage(is_shared)
        if error is None and is_kept:
            uri = self._objects[block.source].uri
            owner = owner_of(self._objects[block.source])
            error = PluginError(f"{owner} keeps a reference to the buffer of read_into", uri=uri)
        if error is None:
            block.finish()
        elif is_transient(error) and not is_kept:
            self._try_again(block, error)
        else:
            self._fail(block, error, is_kept=is_kept)
        del block  # the frames of an exception refer to the frames of their callers, and so to this frame

    def _try_again(self, block: _native.PythonBlock, error: BaseException) -> None:
        own_error = self.transient[block.source] = self._as_streamer_error(error, block)
        status = own_error.status if isinstance(own_error, StorageError) else None
        block.try_again(own_error.message, status or 0)

    def _fail(self, block: _native.PythonBlock, error: BaseException, *, is_kept: bool) -> None:
        try:
            self.failure = self.failure or self._as_streamer_error(error, block)
        finally:
            block.fail(type(error).__name__, is_kept)

    def _fill(self, source: PythonSource, block: _native.PythonBlock, view: memoryview | None) -> None:
        gate = self._gates.get(block.source)
        if gate is None:
            self._fill_in_time(source, block, view)
        else:
            with gate:
                self._fill_in_time(source, block, view)

    def _fill_in_time(self, source: PythonSource, block: _native.PythonBlock, view: memoryview | None) -> None:
        self._running.begin(block.source, block.begin, block.end)
        try:
            buffer: Any = block if view is None else view
            self._check(source.read_into(buffer, block.begin), block)
            self._confirm_if_last(source, block)
        finally:
            self._running.end()

    def _confirm_if_last(self, source: PythonSource, block: _native.PythonBlock) -> None:
        counted = 0 if block.is_reread else block.wanted_bytes
        with self._counting:
            self._missing_bytes[block.source] -= counted
            is_last = self._missing_bytes[block.source] == 0
        if not is_last or source.confirm is None:
            return
        try:
            source.confirm()
        except BaseException:
            with self._counting:  # the block may be read again
                self._missing_bytes[block.source] += counted
            raise

    def _check(self, got: int, block: _native.PythonBlock) -> None:
        wanted = block.end - block.begin
        if got == wanted:
            return
        source_object = self._objects[block.source]
        if isinstance(got, int) and 0 <= got < wanted:
            raise TruncatedError(
                f"{owner_of(source_object)} gave {got} bytes of {wanted}",
                uri=source_object.uri,
                byte_range=(block.begin, block.end),
                object_size=source_object.size_bytes,
                hint="Load again; if that fails, the file is truncated, or its file system ends reads early",
            )
        raise PluginError(f"read_into returned {got!r} for a buffer of {wanted} bytes", uri=source_object.uri)

    def _as_streamer_error(self, error: BaseException, block: _native.PythonBlock) -> StreamerError:
        if isinstance(error, StreamerError):
            return error
        if isinstance(error, LastAttemptError):
            return error.failure
        source_object = self._objects[block.source]
        own_error = StorageError(
            f"the file system failed with {type(error).__name__}",
            uri=source_object.uri,
            byte_range=(block.begin, block.end),
            object_size=source_object.size_bytes,
            hint=_text_of(error)[:300] or None,
        )
        own_error.__cause__ = error
        return own_error


def _caught(function: Callable[..., None], *arguments: object) -> BaseException | None:
    """Call a function and return its exception, `CancelledError`, `SystemExit` and Rust's panics included."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    return None


def _is_true_without_garbage(is_true: Callable[[], bool]) -> bool:
    """Say whether a condition is still true after garbage collection. While another collection runs, try again."""
    for pause_s in COLLECTING_PAUSES_S:
        time.sleep(pause_s)
        gc.collect()
        if not is_true():
            return False
    return True


def _is_released(view: memoryview | None) -> bool:
    try:
        if view is not None:
            view.release()
    except BufferError:
        return False
    return True


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the text of an error must not hide the error
        return ""
