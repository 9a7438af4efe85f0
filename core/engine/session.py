"""One run of the engine over a plan: starts it, renews credentials, and hands out finished items.

Every item is handed out exactly once, or the iteration raises an error. Reading stops within a second, and all threads
are joined, if the caller leaves the iteration or closes the session, after an error, and at garbage collection. Memory
that was not handed out is freed only after that; memory that a hanging device or reader may still write is never freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from streamer import _native
from streamer.core.bounds import bound_by
from streamer.core.engine.native_errors import checksum_error, error_from_native, tampered_error
from streamer.core.engine.native_session import Renewals, SourceObject, make_engine
from streamer.core.engine.plan import Guide, ReadPlan, check_memory, with_cache
from streamer.core.engine.session_end import SessionEnd, SessionMemory, of_one_process
from streamer.core.engine.tuning import choose_python_threads
from streamer.core.errors import LoadCancelledError, StorageError, StreamerError
from streamer.core.load_status import CONSUMER, READING, LoadStatus
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.store.sources import FileSource, HttpSource, PythonSource

if TYPE_CHECKING:
    from streamer.core.engine.python_readers import PythonReaders
    from streamer.core.outages.news import OutageNews
    from streamer.core.tensors.device_tensors import DeviceTensors
    from streamer.core.tensors.target_states import ResizeLock

WAIT_S = 0.2  # between two updates of the progress; the engine itself wakes this thread for anything else


class ReadSession:
    """Reads the items of a plan; see the module's docstring.

    Args:
        objects: The objects, in the order of their numbers in the plan.
        plan: The items to read.
        settings: How to read.
        in_item_order: Hand items out in plan order instead of completion order.
        keep_alive: Owners of the plan's target addresses; referenced until the last reader has ended.
        lock: The lock of the owners' memory; released when nothing writes to this memory any more.
        on_progress: Called often, on the consumer's thread, with a function that returns the bytes that were read so
            far.
        on_wait: Called with a line to show while the load waits for a server, and with "" afterwards.
        digests: Digests to compute of the items, and their expected values.
        name_of: Returns the name of an item, for messages.
        device_tensors: Allocates memory for items on CUDA devices, on the consumer's thread.
        items: The word for the items in messages.
        seals: The items that are encrypted.
        on_end: Called when reading stops, before the threads are joined, so that Python sources return.
        facts: Returns what the status page shows besides; None if the session is a part of a load that is shown.
    """

    _delivered = _taken = 0  # items

    def __init__(
        self,
        objects: Sequence[SourceObject],
        plan: ReadPlan,
        settings: Settings,
        *,
        in_item_order: bool = False,
        keep_alive: object = None,
        lock: ResizeLock | None = None,
        on_progress: Callable[[Callable[[], int]], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
        digests: _native.DigestPlan | None = None,
        name_of: Callable[[int], str] | None = None,
        device_tensors: DeviceTensors | None = None,
        items: str = "tensors",
        seals: _native.SealPlan | None = None,
        on_end: Callable[[], object] = lambda: None,
        facts: Callable[[], dict[str, Any]] | None = dict,
    ) -> None:
        check_memory(plan, objects, name_of)
        self._own_objects = objects
        self._cached = with_cache(objects, plan, settings.coalesce_gap_bytes, in_item_order=in_item_order)
        self._plan, self._objects = plan, objects = self._cached.plan, self._cached.objects
        self._name_of, self._on_progress, self._device_tensors = name_of, on_progress, device_tensors
        self._settings, self._items, self._more_facts = settings, items, facts or dict
        self._engine = make_engine(objects, plan, settings, in_item_order)
        self._news = self._outage_news(on_wait)
        self._renewals = Renewals(self._engine, objects, settings.block_deadline_s)
        targets = SessionMemory(keep_alive, lock, device_tensors)
        self._readers = self._python_readers(targets)
        self.status = self._new_status(is_shown=facts is not None)
        self._end = SessionEnd(self._engine, self._readers, targets, self.status, _both(self._cached.guide, on_end))
        self._finalizer = weakref.finalize(self, self._end)
        try:
            self._start(digests, seals)
            if self._readers is not None:
                self._readers.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop reading, join every thread, and free the memory that was not handed out.

        It may be called any number of times, from any thread; each call returns after everything is done. It waits at
        most a second for a hanging device or Python source. The memory that these may still write is kept.
        """
        self._end()
        self._finalizer.detach()
        if (peers := self._cached.peers) is not None and not self._engine.is_forked():
            received = self._engine.peer_bytes()
            peers.note({self._url(source): size_bytes for source, size_bytes in received.items()})
            self._cached = self._cached._replace(peers=None)  # they are counted
        if self._news is not None and not self._engine.is_forked():
            self._news.end()

    @of_one_process
    def next_items(self, enough_bytes: int = 0) -> list[int]:
        """Wait for items whose bytes are all in place; an empty list means that every item was handed out."""
        if self._delivered == self._plan.item_count:
            return []
        try:
            items = self._wait(enough_bytes).items
            if self._device_tensors:
                self._device_tensors.start_copies(items)
        except BaseException as error:  # an error or Ctrl-C: the last call
            self.status.fail(error)
            self.close()
            raise
        self._delivered += len(items)
        self.status.enter(CONSUMER)
        return items

    @of_one_process
    def take(self, item: int) -> _native.Memory | None:
        """Hand over the memory of a finished item; None if the item is empty or was read into the caller's target."""
        return self.take_all([item])[0]

    @of_one_process
    def take_all(self, items: list[int]) -> list[_native.Memory | None]:
        """Hand over the memory of finished items, for a consumer that keeps them all; see `take`."""
        if self._settings.deadline.is_over:
            self._taken_late()
        self._taken += len(items)
        memories = self._engine.take(items)
        if self._device_tensors:  # a slow consumer must not keep the engine without memory until it waits again
            try:
                self._provide(self._engine.next_to_allocate())
            except BaseException:
                self.close()
                raise
        return memories

    @of_one_process
    def set_memory_limit(self, limit_bytes: int) -> None:
        """Change how far to read ahead, at most `memory_limit_bytes` of the settings; bytes that were read stay."""
        self._engine.set_memory_limit(limit_bytes)

    @of_one_process
    def digest_pieces(self, item: int) -> list[tuple[int, int, int]]:
        """Return offset, size and checksum of each consecutive piece of a finished item; an empty item has none."""
        return self._engine.digest_pieces(item)

    @of_one_process
    def sha256(self, item: int) -> bytes:
        """Return the SHA-256 of a finished item that is hashed."""
        return bytes.fromhex(self._engine.sha256(item))

    @of_one_process
    def compares_answers(self, source: int) -> bool:
        """Say whether every answer with bytes of this object so far was compared with its checksum."""
        return self._engine.compares_answers(source)

    @of_one_process
    def pinned(self) -> list[SourceObject]:
        """Return the objects with the `version` of their answers: a later read is refused if its object has changed.

        Later reads of an object request checksums only if each of its answers so far had one.
        """
        engine = self._engine
        return [
            replace(each, version=engine.version(index), compares_answers=engine.compares_answers(index))
            for index, each in enumerate(self._own_objects)
        ]

    @of_one_process
    def stats(self) -> dict[str, int]:
        """Return the engine's counters."""
        return self._engine.stats()

    def away(self) -> dict[str, list[Any]]:
        """Return a server that serves no requests now, for how long, and its last failure."""
        outages = self._engine.outages()[:1]
        return {each.server: [round(each.waited_s, 1), printable(each.last_failure)[:200]] for each in outages}

    def landed_bytes(self) -> int:
        """Count the bytes that were read so far, dropped gaps included."""
        return int(self._engine.stats()["bytes_landed"])

    def _start(self, digests: _native.DigestPlan | None, seals: _native.SealPlan | None) -> None:
        plan, cached = self._plan, self._cached
        streams = self._device_tensors.streams() if self._device_tensors else {}
        of_peers = [*cached.source_of.values()], [*cached.held_back]
        self._engine.start(plan.items, plan.spans, streams, digests, cached.table, seals, plan.runs, *of_peers)
        if cached.guide is not None:
            cached.guide.start(self._engine, cached.source_of)

    def _url(self, source: int) -> str:
        of_peer = self._objects[source].source
        assert isinstance(of_peer, HttpSource)
        return of_peer.url

    def _new_status(self, *, is_shown: bool) -> LoadStatus:
        names = [each.uri for each in self._objects]
        shared = {number for number, each in enumerate(self._objects) if getattr(each.source, "takes_block", False)}
        watchers = [each.session(self._engine, names, shared) for each in self._settings.watchers]
        label = names[0] if names else ""
        return LoadStatus(label, self._plan.span_bytes, is_shown=is_shown, watchers=watchers)

    def _outage_news(self, on_wait: Callable[[str], None] | None) -> OutageNews | None:
        """Watch the servers of the objects; files have none."""
        if all(isinstance(each.source, FileSource) for each in self._objects):
            return None
        from streamer.core.outages.news import OutageNews  # noqa: PLC0415 (a load of files starts without it)

        return OutageNews(self._engine, on_wait)

    def _python_readers(self, targets: SessionMemory) -> PythonReaders | None:
        """Make the threads that call sources in Python, if there are such sources."""
        if not any(isinstance(each.source, PythonSource) for each in self._objects):
            return None
        from streamer.core.engine.python_readers import PythonReaders  # noqa: PLC0415 (as above)

        threads = choose_python_threads(self._settings, self._plan.span_bytes)
        return PythonReaders(self._engine, self._objects, threads, targets, self._plan)

    def _wait(self, enough_bytes: int) -> _native.Delivery:
        self.status.enter(READING)
        while True:
            delivery = self._engine.wait(WAIT_S, enough_bytes)
            self.status.update(self._facts)
            if self._on_progress:
                self._on_progress(self.landed_bytes)
            if self._news is not None:
                self._news.look()
            if delivery.error is not None:
                raise self._error(delivery.error)
            if self._readers is not None and (overdue := self._readers.overdue()) is not None:
                raise overdue
            self._provide(delivery.to_allocate)
            self._renewals.renew(delivery.to_refresh)
            if delivery.items:
                return delivery
            self._check_deadline()
            if delivery.is_finished:
                raise LoadCancelledError("the stream was closed while it was read")

    def _facts(self) -> dict[str, Any]:
        """Return what `LoadStatus` shows of this session."""
        stats = self._engine.stats()
        counters = {name: stats[name] for name in ("blocks", "retries", "http_requests", "waited_us")}
        shown = {"bound_by": bound_by(stats), "away": self.away(), **self._more_facts()}
        return {"done_bytes": stats["bytes_landed"], **counters, **shown}

    def _provide(self, items: list[int]) -> None:
        if not items:
            return
        assert self._device_tensors is not None
        with self._settings.traced("allocate", "allocate on the device", tensors=len(items)):
            for provision in self._device_tensors.allocate(items):
                self._engine.provide(*provision)

    def _check_deadline(self) -> None:
        if self._settings.deadline.is_over and self._delivered < self._plan.item_count:
            raise self._late(self._plan.item_count - self._delivered)

    def _taken_late(self) -> NoReturn:
        self.close()
        raise self._late(self._plan.item_count - self._taken)

    def _late(self, missing: int) -> StreamerError:
        limit = self._settings.max_bytes_per_second
        limited = f"; max_bytes_per_second allows {limit} bytes/s" if limit else ""
        away = [
            f"; {each.server} has been failing for {each.waited_s:.1f} s, at last with: {printable(each.last_failure)}"
            for each in self._engine.outages()
        ]
        return self._settings.deadline.error(
            f"{missing} of {self._plan.item_count} {self._items} were not there in time{limited}{''.join(away)}",
            self._objects[0].uri,
        )

    def _error(self, native: _native.ReadError) -> StreamerError:
        readers, failed = self._readers, self._objects[native.source]
        if readers is not None and native.code == "source" and readers.failure is not None:
            return readers.failure
        if readers is not None and native.source in readers.transient:
            return _with_attempts(readers.transient[native.source], native)
        if native.code == "checksum":
            is_of_item = native.item < self._plan.item_count  # else of an answer, which may hold several items
            name = self._name_of(native.item) if self._name_of and is_of_item else None
            return checksum_error(native, name, uri=failed.uri, object_size=failed.size_bytes)
        if native.code == "tampered":
            name = self._name_of(native.item) if self._name_of else None
            return tampered_error(native, name, uri=failed.uri)
        is_of_all = native.code == "device" and len(self._objects) > 1  # the error is not about one object
        return error_from_native(
            native,
            uri=None if is_of_all else failed.uri,
            object_size=failed.size_bytes,
            is_http=isinstance(failed.source, HttpSource),
        )


def _both(guide: Guide | None, on_end: Callable[[], object]) -> Callable[[], object]:
    def end() -> None:
        if guide is not None:
            guide.end()
        on_end()

    return end


def _with_attempts(error: StreamerError, native: _native.ReadError) -> StreamerError:
    """Add the engine's count of attempts to the last failure of a Python source."""
    error.message = native.detail
    if isinstance(error, StorageError):
        error.attempts, error.elapsed_s = native.attempts, native.elapsed_s
    return error
