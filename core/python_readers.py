"""Threads that fill the engine's blocks through `PythonSource.read_into`.

A source that answers short, long or not at all is an error with its range; one that keeps the buffer is a
`PluginError`, because a late write would reach a tensor already handed out. The last bytes of an object are handed on
only after its source confirmed that it did not change.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamer.core.errors import PluginError, StorageError, StreamerError, TruncatedError
from streamer.core.sources import PythonSource

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine import SourceObject

__all__ = ["PythonReaders"]

JOIN_S = 1.0  # a read_into that hangs cannot be interrupted; its daemon thread keeps its memory and is left


class PythonReaders:
    """The Python threads of one session.

    Attributes:
        failure: The first exception of a source, as a `StreamerError`; None while all is well.
    """

    def __init__(
        self,
        engine: _native.Session,
        objects: Sequence[SourceObject],
        max_threads: int,
        keep_alive: object,
        items: Sequence[int],
    ) -> None:
        self.failure: StreamerError | None = None
        self._engine = engine
        self._objects = objects
        self._keep_alive = keep_alive
        self._threads: list[threading.Thread] = []
        self._gates = {
            index: threading.BoundedSemaphore(known.source.max_threads)
            for index, known in enumerate(objects)
            if isinstance(known.source, PythonSource) and known.source.max_threads
        }
        has_work = any(isinstance(known.source, PythonSource) for known in objects)
        self._count = max_threads if has_work else 0
        self._missing_bytes = _bytes_by_object(items) if has_work else Counter()
        self._counting = threading.Lock()

    def start(self) -> None:
        """Start the threads; without a `PythonSource` there are none."""
        for index in range(self._count):
            thread = threading.Thread(target=self._run, name=f"streamer-py{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait, at most a second in all, for the threads to see that the engine has stopped."""
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (block := self._engine.take_python_block()) is not None:
            try:
                self._fill(block)
            except Exception as error:
                self.failure = self.failure or self._as_ours(error, block)
                block.fail(str(error))
            else:
                block.finish()

    def _fill(self, block: _native.PythonBlock) -> None:
        source = self._objects[block.source].source
        assert isinstance(source, PythonSource)
        references = sys.getrefcount(block)
        view = memoryview(block)
        gate = self._gates.get(block.source)
        if gate is None:
            got = source.read_into(view, block.begin)
        else:
            with gate:
                got = source.read_into(view, block.begin)
        self._check(got, block)
        self._confirm_if_last(source, block)
        try:
            view.release()
            is_kept = sys.getrefcount(block) != references  # a slice of the view holds the block, not the view
        except BufferError:
            is_kept = True
        if is_kept:
            raise PluginError(
                "the source keeps a reference to the buffer it was given", uri=self._objects[block.source].uri
            )

    def _confirm_if_last(self, source: PythonSource, block: _native.PythonBlock) -> None:
        with self._counting:
            if not block.is_reread:
                self._missing_bytes[block.source] -= block.wanted_bytes
            is_last = block.is_reread or self._missing_bytes[block.source] == 0
        if is_last and source.confirm is not None:
            source.confirm()

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

    def _as_ours(self, error: Exception, block: _native.PythonBlock) -> StreamerError:
        if isinstance(error, StreamerError):
            return error
        known = self._objects[block.source]
        ours = StorageError(
            f"the file system failed with {type(error).__name__}",
            uri=known.uri,
            byte_range=(block.begin, block.end),
            object_size=known.size_bytes,
            hint=str(error)[:300] or None,
        )
        ours.__cause__ = error
        return ours


def _bytes_by_object(items: Sequence[int]) -> Counter[int]:
    """Add up the items of each object; of the gaps in its spans, only those inside of a block are read.

    A row is (object, begin, end, target, place), as `streamer.core.plan` writes them.
    """
    found: Counter[int] = Counter()
    for source, begin, end in zip(items[0::5], items[1::5], items[2::5], strict=True):
        found[source] += end - begin
    return found
