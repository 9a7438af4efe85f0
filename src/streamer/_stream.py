"""The main way in: a checkpoint as an iterator of tensors, each one the consumer's own.

A tensor is yielded exactly once, when all its bytes have landed. If anything fails, the loop raises; if the
loop ends, every tensor asked for was yielded. Leaving early cancels within a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from streamer import _native
from streamer._locate import StorageOptions, UriOption
from streamer._opened import Opened, open_checkpoint, wanted_tensors
from streamer._progress import Progress, ProgressOption
from streamer.core.checkpoint.catalog import Located
from streamer.core.checkpoint.device_path import device_path, gpudirect_remarks
from streamer.core.checkpoint.report import LoadReport, count_readers, remarks_of
from streamer.core.checkpoint.selection import NamesOption, checked_names
from streamer.core.checkpoint.strategies import VerifyOption
from streamer.core.checkpoint.targets import Targets, bytes_at
from streamer.core.checkpoint.verification import Verification
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import ChecksumError, EngineError, LoadCancelledError, OptionError, UsageError
from streamer.core.options.arguments import check_progress
from streamer.core.options.options import Options
from streamer.core.quoting import printable
from streamer.core.secrets.options import hidden
from streamer.core.secrets.urls import hidden_uris
from streamer.core.tensors.device_tensors import DeviceTensors
from streamer.core.tensors.frameworks import Framework, framework_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


__all__ = ["Stream", "stream"]

_log = logging.getLogger("streamer")

Order = Literal["completion", "file"]


class Stream:
    """An iterator of ``(name, tensor)`` and a context manager; made by `streamer.stream`.

    Reading starts at once, in the background, and runs ahead of the consumer up to the memory limit. One thread at a
    time reads it; any may close it.

    Attributes:
        total_bytes: Bytes of all tensors that will be yielded.
        wrong_shards: With `has_second_chance`, shards that are not what their storage's digest says; else an error.
    """

    def __init__(
        self,
        opened: Opened,
        wanted: list[Located],
        framework: Framework,
        *,
        targets: Targets | None = None,
        order: Order = "completion",
        progress: ProgressOption = None,
        has_second_chance: bool = False,
    ) -> None:
        self._opened = opened
        self._has_second_chance = has_second_chance
        self.wrong_shards: set[int] = set()
        self._wanted = wanted
        self._framework = framework
        for located in wanted:
            framework.dtype(located.entry)  # an unknown dtype is refused before any byte is read
            framework.shape(located.entry)
        self._targets = targets
        self._in_place = targets.in_place if targets else {}
        self._devices = [_device(each, framework, targets) for each in wanted]
        plan = plan_reads(_items(wanted, self._devices, targets), opened.settings.coalesce_gap_bytes)
        self._device_tensors: DeviceTensors | None = None
        if any(device != _native.HOST for device in self._devices):
            entries = [each.entry for each in wanted]
            self._device_tensors = DeviceTensors(entries, self._devices, framework)
        self.total_bytes = plan.item_bytes
        self._bytes_read = plan.span_bytes
        self._started = time.perf_counter()
        self._ended: float | None = None
        self._yielded = 0
        self._progress = Progress(progress, plan.span_bytes, opened.label)
        shards = {each.shard: opened.catalog.shards[each.shard].source for each in wanted}
        self._sources = list(shards.values())
        self._verification = verification = opened.verification(wanted)
        self._session = ReadSession(
            opened.catalog.shards,
            plan,
            opened.settings,
            in_item_order=order == "file" or (verification is not None and verification.needs_order),
            keep_alive=self._in_place,
            lock=targets.lock.shared() if targets else None,
            on_progress=self._progress.update if self._progress.is_shown else None,
            on_wait=self._progress.note,
            digests=verification.digests if verification else None,
            name_of=lambda item: wanted[item].entry.name,
            device_tensors=self._device_tensors,
        )
        self._batch: Iterator[int] = iter(())
        self._is_closing = False
        self._reading = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Names of the tensors this stream yields, in file order."""
        return [located.entry.name for located in self._wanted]

    @property
    def report(self) -> LoadReport:
        """What was done so far; complete once the loop has ended."""
        stats, before = self._session.stats(), self._opened.settings.meter
        path = device_path(self._ways(), stats)
        read_s = (self._ended or time.perf_counter()) - self._started
        stages = {**self._opened.stages, "read": read_s}
        return LoadReport(
            uri=self._opened.label,
            tensors=stats["items_delivered"],
            bytes=stats["bytes_delivered"],
            bytes_read=self._bytes_read,
            seconds=sum(stages.values()),
            requests=stats["http_requests"],
            retries=stats["retries"],
            outages=stats["outages"] + before.outages,
            waited_s=stats["waited_us"] / 1e6 + before.waited_s,
            probes=stats["probes"] + before.probes,
            rereads=stats["rereads"],
            hedges=stats["hedges"],
            credential_refreshes=stats["credential_refreshes"],
            peak_held_bytes=stats["peak_held_bytes"],
            readers=count_readers(self._sources),
            remarks=(
                *remarks_of(self._sources),
                *self._framework.devices.remarks(),
                *gpudirect_remarks(path, stats, is_asked=bool(self._opened.settings.gpudirect)),
            ),
            verified=self._verification.checks(self._session.compares_answers) if self._verification else (),
            device_path=path,
            peak_pinned_bytes=stats["peak_pinned_bytes"],
            stages=stages,
            is_complete=self._yielded == len(self._wanted),
        )

    def close(self) -> None:
        """Stop reading and join every thread. Tensors already yielded stay valid."""
        self._is_closing = True
        self._session.close()
        self._progress.close()
        self._ended = self._ended or time.perf_counter()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> tuple[str, Any]:
        if not self._reading.acquire(blocking=False):
            raise UsageError(
                "the stream is read by another thread, or by its own progress callback",
                uri=self._opened.label,
                hint="Let one thread read it and hand the tensors on, or make a stream for each",
            )
        try:
            return self._next()
        finally:
            self._reading.release()

    def _next(self) -> tuple[str, Any]:
        for item in self._batch:
            entry = self._wanted[item].entry
            memory = self._session.take(item)
            if self._verification is not None:
                self._verify(self._verification, item, memory)
            self._yielded += 1
            if self._in_place and entry.name in self._in_place:
                return entry.name, self._in_place[entry.name]
            return entry.name, self._framework.cast(self._tensor(item, memory))
        batch = self._session.next_items()
        if not batch:
            self._finish()
            raise StopIteration
        self._batch = iter(batch)
        return self._next()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _verify(self, verification: Verification, item: int, memory: _native.Memory | None) -> None:
        name = self._wanted[item].entry.name
        data = bytes_at(self._in_place[name], self._wanted[item].entry) if name in self._in_place else memory
        try:
            verification.take(item, None if data is None else memoryview(data), self._session.digest_pieces)
        except BaseException as error:
            if self._has_second_chance and isinstance(error, ChecksumError):
                self.wrong_shards.add(self._wanted[item].shard)
                return
            self.close()  # nothing more may be handed out
            raise

    def _tensor(self, item: int, memory: _native.Memory | None) -> Any:
        entry = self._wanted[item].entry
        if self._is_closing:  # by another thread: the engine gives nothing any more
            raise LoadCancelledError("the stream was closed while it was read")
        if self._device_tensors and self._devices[item] != _native.HOST:
            return self._device_tensors.take(item)
        if memory is None and entry.end > entry.begin:
            raise EngineError(f"tensor {entry.name[:80]!r} was delivered without its bytes", uri=self._opened.label)
        return self._framework.devices.moved(self._framework.tensor(memory, entry), entry.name)

    def _ways(self) -> set[str]:
        if self._targets is not None:
            return self._targets.device_paths
        return {self._framework.devices.path(located.entry.name) for located in self._wanted}

    def _finish(self) -> None:
        if self._ended is not None:
            return
        self.close()
        report = self.report
        if not report.is_complete or report.bytes != self.total_bytes:
            raise EngineError(f"{report.tensors} tensors of {len(self._wanted)} were delivered", uri=report.uri)
        _log.info("%s", report)
        for check in report.verified:
            if check.verified_by is None:
                _log.info("%s: not verified, %s", printable(check.uri), printable(check.remark or ""))


def _device(located: Located, framework: Framework, targets: Targets | None) -> int:
    if targets is None:
        return framework.devices.engine_device(located.entry.name)
    return targets.devices.get(located.entry.name, _native.HOST)


def _items(wanted: list[Located], devices: list[int], targets: Targets | None) -> Iterator[Item]:
    addresses = targets.addresses if targets else {}
    for located, device in zip(wanted, devices, strict=True):
        entry = located.entry
        yield Item(located.shard, entry.begin, entry.end, addresses.get(entry.name, 0), device)


def stream(
    uri: UriOption,
    *,
    device: Any = "cpu",
    names: NamesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    order: Order = "completion",
    dtype: Any = None,
    verify: VerifyOption = None,
) -> Stream:
    """Stream the tensors of a checkpoint as they arrive.

    Args:
        uri: As for `streamer.load`.
        device: As for `streamer.load`.
        names: As for `streamer.load`.
        framework: ``"pt"`` or ``"np"``.
        storage_options: As for `streamer.load`.
        fs: As for `streamer.load`.
        options: How to read; see `streamer.Options`.
        progress: As for `streamer.load`.
        order: ``"completion"``: each tensor as soon as it is whole; ``"file"``: as their bytes lie in the
            shards.
        dtype: As for `streamer.load`.
        verify: As for `streamer.load`. Under ``"auto"`` an object is compared when its last tensor is yielded:
            trust the others when the loop has ended.

    Returns:
        A `Stream`. Its ``report`` is complete after the loop; leaving the loop early cancels the rest.

    Raises:
        StreamerError: as for `streamer.load`; from the call for what is found before the first weight byte is
            read, from the loop for the rest.

    Example:
        >>> with streamer.stream("s3://bucket/model") as tensors:      # doctest: +SKIP
        ...     for name, tensor in tensors:
        ...         consume(name, tensor)
        >>> print(tensors.report)                                      # doctest: +SKIP
    """
    uri, storage_options = hidden_uris(uri), hidden(storage_options)
    names = checked_names(names)
    check_progress(progress)
    if order not in ("completion", "file"):
        raise OptionError(f'order is "completion" or "file", not {order!r}')
    made = framework_of(framework, device, dtype)
    opened = open_checkpoint(uri, storage_options, options, fs, verify)
    wanted = wanted_tensors(opened, names)
    return Stream(opened, wanted, made, order=order, progress=progress)
