"""Threads that fill the engine's blocks through `PythonSource.read_into`.

A source that answers short, long or not at all is an error with its range; one that keeps the buffer is a
`PluginError`, because a late write would reach a tensor already handed out. The last bytes of an object are handed on
only after its source confirmed that it did not change. However a thread ends, the load ends with it or goes on.
A failure that may pass is the engine's to judge, as over HTTP: the block is read again, or its storage is waited for.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streamer.core.causes import with_causes
from streamer.core.errors import PluginError, StorageError, StreamerError, TruncatedError
from streamer.core.outages.transient import is_transient
from streamer.core.store.sources import PythonSource

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import ReadPlan

__all__ = ["PythonReaders"]

JOIN_S = 1.0  # a read_into that hangs cannot be interrupted; its daemon thread keeps its memory and is left


class PythonReaders:
    """The Python threads of one session.

    Attributes:
        failure: The first exception of a source that will not pass, as a `StreamerError`; None while all is well.
        passing: By object, the last of those that may.
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
        self.passing: dict[int, StreamerError] = {}
        self._engine = engine
        self._objects = objects
        self._keep_alive = keep_alive
        self._threads: list[threading.Thread] = []
        self._join_by: float | None = None
        self._gates = {
            index: threading.BoundedSemaphore(known.source.max_threads)
            for index, known in enumerate(objects)
            if isinstance(known.source, PythonSource) and known.source.max_threads
        }
        has_work = any(isinstance(known.source, PythonSource) for known in objects)
        self._count = max_threads if has_work else 0
        self._missing_bytes = plan.bytes_by_source() if has_work else Counter()
        self._counting = threading.Lock()

    def start(self) -> None:
        """Start the threads; without a `PythonSource` there are none."""
        for index in range(self._count):
            thread = threading.Thread(target=self._run, name=f"streamer-py{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> bool:
        """Wait, at most a second from the first call on, for the threads to see that the engine has stopped.

        Returns:
            Whether all of them have ended: one that has not may still write.
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
            except BaseException as error:  # no memory, or an exception that was sent to this thread
                _forget_locals(error)
                self._fail(block, error, is_kept=True)

    def _read(self, block: _native.PythonBlock) -> None:
        """Finish the block or fail it, whatever the source raises: nobody else would end the load."""
        references = sys.getrefcount(block)
        view = memoryview(block)

        def is_shared() -> bool:
            return not _is_released(view) or sys.getrefcount(block) != references  # noqa: F821  it is deleted last

        error = _caught(self._fill, block, view)
        if error is not None:
            _forget_locals(error)  # else whoever keeps the error keeps the load's memory
        # A slice of the view holds the block, not the view. An error that the source met and got over may hold one in
        # a circle, as those of futures do, until garbage is collected.
        is_kept = is_shared()
        if is_kept:
            gc.collect()
            is_kept = is_shared()
        if error is None and is_kept:
            uri = self._objects[block.source].uri
            error = PluginError("the source keeps a reference to the buffer it was given", uri=uri)
        if error is None:
            block.finish()
        elif is_transient(error) and not is_kept:
            self._try_again(block, error)
        else:
            self._fail(block, error, is_kept=is_kept)
        del block  # frames of an error hold those that called them

    def _try_again(self, block: _native.PythonBlock, error: BaseException) -> None:
        ours = self.passing[block.source] = self._as_ours(error, block)
        status = ours.status if isinstance(ours, StorageError) else None
        block.try_again(ours.message, status or 0)

    def _fail(self, block: _native.PythonBlock, error: BaseException, *, is_kept: bool) -> None:
        try:
            self.failure = self.failure or self._as_ours(error, block)
        finally:
            block.fail(type(error).__name__, is_kept)

    def _fill(self, block: _native.PythonBlock, view: memoryview) -> None:
        source = self._objects[block.source].source
        assert isinstance(source, PythonSource)
        gate = self._gates.get(block.source)
        if gate is None:
            got = source.read_into(view, block.begin)
        else:
            with gate:
                got = source.read_into(view, block.begin)
        self._check(got, block)
        self._confirm_if_last(source, block)

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
        known = self._objects[block.source]
        if isinstance(got, int) and 0 <= got < wanted:
            raise TruncatedError(
                f"the source gave {got} bytes of {wanted}",
                uri=known.uri,
                byte_range=(block.begin, block.end),
                object_size=known.size_bytes,
            )
        raise PluginError(f"read_into returned {got!r} for a buffer of {wanted} bytes", uri=known.uri)

    def _as_ours(self, error: BaseException, block: _native.PythonBlock) -> StreamerError:
        if isinstance(error, StreamerError):
            return error
        known = self._objects[block.source]
        ours = StorageError(
            f"the file system failed with {type(error).__name__}",
            uri=known.uri,
            byte_range=(block.begin, block.end),
            object_size=known.size_bytes,
            hint=_text_of(error)[:300] or None,
        )
        ours.__cause__ = error
        return ours


def _caught(function: Callable[..., None], *arguments: object) -> BaseException | None:
    """Call it and return what it raises, also what is no `Exception`: `CancelledError`, `SystemExit`, Rust's panics."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    return None


def _forget_locals(error: BaseException) -> None:
    """Let go of what the frames of an error held, which may be slices of the buffer, as `unittest` does."""
    for each in with_causes(error):
        traceback.clear_frames(each.__traceback__)


def _is_released(view: memoryview) -> bool:
    try:
        view.release()
    except BufferError:
        return False
    return True


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the text of an error must not hide the error
        return ""
