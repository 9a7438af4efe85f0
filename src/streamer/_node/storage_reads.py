"""Reads of one load from its storage, each a session of the engine: into slots of a meeting, or past them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import LoadCancelledError
from streamer.core.options.settings import Settings
from streamer.core.store.sources import HttpSource

__all__ = ["RenewedObjects", "StorageReads"]


class RenewedObjects:
    """The objects of a load, each with the credentials of its last read. Thread-safe.

    Args:
        objects: As the plan of the load numbers them.
    """

    def __init__(self, objects: Sequence[SourceObject]) -> None:
        self._objects = [self._noting(number, each) for number, each in enumerate(objects)]

    def __getitem__(self, number: int) -> SourceObject:
        return self._objects[number]

    def _noting(self, number: int, each: SourceObject) -> SourceObject:
        """Note what `refresh` returns, so that the next session need not refresh again."""
        source = each.source
        if not isinstance(source, HttpSource) or source.refresh is None:
            return each
        ask = source.refresh

        def refresh() -> HttpSource:
            fresh = replace(ask(), refresh=refresh)
            self._objects[number] = replace(each, source=fresh)
            return fresh

        return replace(each, source=replace(source, refresh=refresh))


class StorageReads:
    """Reads that end together. Thread-safe.

    Args:
        objects: Objects of the load.
        settings: How to read.
        count: Called with the counters of each session, on its thread.
    """

    def __init__(self, objects: RenewedObjects, settings: Settings, count: Callable[[dict[str, int]], None]) -> None:
        self._objects, self._settings, self._count = objects, settings, count
        self._lock = threading.Lock()
        self._running: set[ReadSession] = set()
        self._is_closed = False

    def read(self, items: Sequence[Item], keep_alive: object, on_read: Callable[[list[int]], None]) -> None:
        """Read items to their targets; call `on_read` with the numbers of those that have arrived.

        Args:
            items: Sorted by object and offset, each with a target.
            keep_alive: Owner of the targets.
            on_read: Called on this thread.

        Raises:
            StorageError: and its kinds.
            LoadCancelledError: the reads were closed.
        """
        used = sorted({each.source for each in items})
        renumbered = [each._replace(source=used.index(each.source)) for each in items]
        session = ReadSession(
            [self._objects[number] for number in used],
            plan_reads(renumbered, 0),
            self._settings,
            keep_alive=keep_alive,
            items="blocks",
        )
        try:
            self._add(session)
            while arrived := session.next_items():
                session.take_all(arrived)
                on_read(arrived)
        finally:
            self._count(session.stats())
            session.close()
            with self._lock:
                self._running.discard(session)

    def close(self) -> None:
        """End all reads; when this returns, none of them writes to its targets."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for session in running:
            with suppress(RuntimeError):  # raised in a forked child
                session.close()

    def _add(self, session: ReadSession) -> None:
        with self._lock:
            if self._is_closed:
                raise LoadCancelledError("the load was closed while its blocks were read")
            self._running.add(session)
