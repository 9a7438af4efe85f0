"""A checkpoint as an iterator of tensors, each of which belongs to the consumer.

A tensor is yielded exactly once, when all its bytes have arrived. If anything fails, the loop raises; if the loop ends,
every wanted tensor was yielded. Leaving the loop early cancels the rest within a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from streamer import _native
from streamer._arguments import hidden_arguments, request_of, takes_request
from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, wanted_tensors
from streamer._progress import Progress
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.destinations import Destinations
from streamer.core.checkpoint.report import LoadReport, device_path, gpudirect_remarks, load_report
from streamer.core.checkpoint.verification import Verification, log_unverified
from streamer.core.collector import collector_paused
from streamer.core.engine.joined_items import JoinedItems
from streamer.core.engine.plan import plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.errors import EngineError, LoadCancelledError, OptionError, OutOfMemoryError, UsageError
from streamer.core.group.joining import joined_group
from streamer.core.log import OwnLogger
from streamer.core.node.should_share import node_share, read_ahead
from streamer.core.request.request import ProgressOption, Request, UriOption
from streamer.core.tensors.frameworks import Framework, TensorT

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from streamer._arguments import RequestArguments, StreamArguments
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.group.session import GroupSession
    from streamer.core.group.start import SharedReads
    from streamer.core.node.share import NodeShare
    from streamer.core.tensors.frameworks import NumpyName, TorchName

__all__ = ["Stream", "begun", "stream"]

_log = OwnLogger()

Order = Literal["completion", "file"]
BATCH_BYTES = 32 << 20  # tensors of a batch no longer count against the memory limit, and may be cast or moved
ENOUGH_BYTES = 64 << 20  # a consumer that keeps all tensors waits for as many, so that readers use its processor


class Stream(Generic[TensorT]):
    """An iterator of ``(name, tensor)`` and a context manager; `streamer.stream` returns one.

    Reading starts at once, in the background, and continues ahead of the consumer up to the memory limit. Only one
    thread at a time may iterate; any thread may close the stream.
    """

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        wanted: list[ShardTensor],
        framework: Framework,
        verification: Verification | None,
        *,
        targets: Targets | None = None,
        order: Order = "completion",
        progress: ProgressOption = None,
    ) -> None:
        self._group = _reads_of_group(checkpoint, wanted, is_verified=verification is not None)
        if self._group is not None:
            wanted, verification = self._group.kept, self._group.verification
        self._checkpoint, self._wanted, self._verification = checkpoint, wanted, verification
        with collector_paused():
            self._destinations = Destinations(wanted, framework, targets, self._largest_gap_bytes())
            self._wanted = wanted = self._destinations.wanted
            self._plan = plan_reads(self._destinations.items(), checkpoint.settings.coalesce_gap_bytes)
            if self._group is not None:
                self._plan = self._group.counted(self._plan)
        self._share = None if self._group else node_share(checkpoint.catalog, wanted, self._plan, checkpoint.settings)
        self._plan = self._share.plan if self._share else self._plan
        self._started = time.perf_counter()
        self._ended: float | None = None
        self._yielded = 0
        self._batch: deque[int] = deque()
        self._is_closing = False
        self._reading = threading.Lock()
        self._progress = Progress(progress, self._plan.span_bytes, checkpoint.label)
        try:
            self._session = self._start_session(order)
        except BaseException:
            if self._share:
                self._share.close()
            raise

    @property
    def names(self) -> list[str]:
        """Names of the tensors this stream yields, in file order."""
        return [each.entry.name for each in self._wanted]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors that will be yielded."""
        return self._plan.item_bytes

    def unread_share(self) -> float:
        """Return the part, from 1 to 0, of the bytes that are not read yet."""
        return max(0.0, 1 - self._session.landed_bytes() / max(1, self._plan.span_bytes))

    @property
    def report(self) -> LoadReport:
        """The report of the load so far; complete once the loop has ended."""
        stats, settings, verification = self._session.stats(), self._checkpoint.settings, self._verification
        share, packed = self._share, settings.earlier.packed
        stats = share.added_to(stats) if share else stats
        paths = self._destinations.device_paths()
        if self._group is not None:  # the group fills tensors on devices itself
            paths = {"torch" if each == "ring" else each for each in paths}
        path = device_path(paths, stats)
        read_bytes = (share.read_bytes if share else self._plan.span_bytes) - stats["cached_bytes"]
        shards = {each.shard: self._checkpoint.catalog.shards[each.shard].source for each in self._wanted}
        return load_report(
            self._checkpoint.label,
            {**stats, "cached_bytes": stats["cached_bytes"] + packed.cached_bytes},
            settings.earlier,
            stages={**self._checkpoint.stages, "read": (self._ended or time.perf_counter()) - self._started},
            bytes_read=max(0, read_bytes + packed.packed_bytes - packed.cached_bytes - packed.unpacked_bytes),
            shared_bytes=share.copied_bytes if share else 0,
            sources=list(shards.values()),
            remarks=[
                *self._checkpoint.remarks,
                *self._destinations.remarks(),
                *self._checkpoint.cache.remarks(),
                *gpudirect_remarks(path, stats, is_asked=bool(settings.gpudirect)),
            ],
            verified=verification.checks(self._session.compares_answers) if verification else (),
            device_path=path,
            is_complete=self._yielded == len(self._wanted),
        )

    @property
    def is_next_ready(self) -> bool:
        """Whether the next tensor is already complete, so that iteration need not wait; False at the end."""
        return bool(self._batch)

    def close(self) -> None:
        """Stop reading and join every thread. Tensors already yielded stay valid."""
        self._is_closing = True
        self._session.close()
        self._progress.close()
        self._ended = self._ended or time.perf_counter()

    def __iter__(self) -> Stream[TensorT]:
        return self

    def __next__(self) -> tuple[str, TensorT]:
        self._begin_reading()
        try:
            self._batch = self._batch or deque(self._finished_items())
            if not self._batch:
                raise StopIteration
            return self._take([self._batch.popleft()])[0]
        finally:
            self._reading.release()

    def next_batch(self) -> list[tuple[str, TensorT]]:
        """Take the next tensors, up to `BATCH_BYTES`, for a consumer that keeps them all; none at the end."""
        self._begin_reading()
        try:
            held_bytes = self._checkpoint.settings.memory_limit_bytes  # readers need the other part of it meanwhile
            self._batch = self._batch or deque(self._finished_items(min(ENOUGH_BYTES, held_bytes // 2)))
            items, size_bytes = [], 0
            while self._batch and size_bytes < BATCH_BYTES:
                items.append(self._batch.popleft())
                entry = self._wanted[items[-1]].entry
                size_bytes += entry.end - entry.begin
            with collector_paused():
                return self._take(items) if items else []
        finally:
            self._reading.release()

    def __enter__(self) -> Stream[TensorT]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _largest_gap_bytes(self) -> int | None:
        """Return the largest gap that is read between parts of a tensor; None if a tensor is read as one range.

        A tensor is read as one range if a group divides its tensors itself, if a digest covers a whole tensor, or if an
        encrypted file is divided into its own pieces.
        """
        is_whole = self._group is not None or self._verification is not None or self._checkpoint.is_sealed
        return None if is_whole else self._checkpoint.settings.coalesce_gap_bytes

    def _start_session(self, order: Order) -> ReadSession | GroupSession | JoinedItems:
        if self._group is not None:
            return self._group.started(self._plan, self._destinations, self._progress)
        session, rows = self._started_session(order), self._destinations.item_of_row
        return session if rows is None else JoinedItems(session, self._plan, rows)

    def _started_session(self, order: Order) -> ReadSession:
        if self._share:
            try:
                return self._session_of(order, self._share)
            except OutOfMemoryError:  # reading alone takes fewer threads, and less memory
                self._share.close()
                self._share = None
        return self._session_of(order, None)

    def _session_of(self, order: Order, share: NodeShare | None) -> ReadSession:
        wanted, verification, catalog = self._wanted, self._verification, self._checkpoint.catalog
        rows = self._destinations.item_of_row
        ahead = read_ahead(catalog, self._plan, self._checkpoint.settings)
        session = ReadSession(
            share.objects if share else catalog.shards,
            self._plan,
            share.settings if share else self._checkpoint.settings,
            in_item_order=order == "file" or (verification is not None and verification.needs_order),
            keep_alive=self._destinations.in_place,
            lock=self._destinations.share_lock(),
            on_progress=self._progress.update if self._progress.is_shown else None,
            on_wait=self._progress.note,
            digests=verification.digests if verification else None,
            # It refers to no stream, so that garbage collection closes one.
            name_of=lambda row: wanted[row if rows is None else rows[row]].entry.name,
            device_tensors=self._destinations.device_tensors,
            seals=self._checkpoint.seal_plan(self._plan),
            on_end=lambda: [each.close() for each in (share, ahead) if each],
        )
        if ahead:
            ahead.begin(session)
        return session

    def _begin_reading(self) -> None:
        if not self._reading.acquire(blocking=False):
            raise UsageError(
                "the stream is read by another thread, or by its own progress callback",
                uri=self._checkpoint.label,
                hint="Let one thread read it and pass the tensors on, or open a stream for each thread",
            )

    def _finished_items(self, enough_bytes: int = 0) -> list[int]:
        items = self._session.next_items(enough_bytes)
        if not items:
            self._finish()
        return items

    def _take(self, items: list[int]) -> list[tuple[str, Any]]:
        memories = self._session.take_all(items)
        if self._verification is not None:
            self._verify(self._verification, items, memories)
        self._yielded += len(items)
        if None in memories:
            self._check_delivered(items, memories)
        names = [self._wanted[item].entry.name for item in items]
        return list(zip(names, self._destinations.tensors(items, memories), strict=True))

    def _verify(self, verification: Verification, items: list[int], memories: list[_native.Memory | None]) -> None:
        try:
            for item, memory in zip(items, memories, strict=True):
                verification.take(item, self._destinations.bytes_of(item, memory), self._session.digest_pieces)
        except BaseException:
            self.close()  # nothing more may be handed out
            raise

    def _check_delivered(self, items: list[int], memories: list[_native.Memory | None]) -> None:
        """Check that each tensor has memory of the engine, unless it is empty or was read into other memory."""
        for item, memory in zip(items, memories, strict=True):
            entry = self._wanted[item].entry
            if memory is not None or entry.name in self._destinations.in_place:
                continue
            if self._is_closing:  # another thread closes the stream, and the engine delivers no more tensors
                raise LoadCancelledError("the stream was closed while it was read")
            if entry.end > entry.begin and not self._destinations.is_on_accelerator(item):
                uri = self._checkpoint.label
                raise EngineError(f"tensor {entry.name[:80]!r} was delivered without its bytes", uri=uri)

    def _finish(self) -> None:
        if self._ended is not None:
            return
        self.close()
        report = self.report
        if not report.is_complete or report.bytes != self.total_bytes:
            raise EngineError(f"{report.tensors} tensors of {len(self._wanted)} were delivered", uri=report.uri)
        _log.info("%s", report)
        log_unverified(report.uri, report.verified)


@overload
def stream(uri: UriOption, *, framework: TorchName = ..., **how: Unpack[StreamArguments]) -> Stream[torch.Tensor]: ...
@overload
def stream(uri: UriOption, *, framework: NumpyName, **how: Unpack[StreamArguments]) -> Stream[NDArray[Any]]: ...
@overload
def stream(uri: UriOption, *, framework: str, **how: Unpack[StreamArguments]) -> Stream[Any]: ...
@takes_request()
def stream(uri: UriOption, *, order: Order = "completion", **how: Unpack[RequestArguments]) -> Stream[Any]:
    """Stream the tensors of a checkpoint as they arrive.

    Args:
        uri: As for `streamer.load`, like the keyword arguments that are not described here.
        order: ``"completion"`` yields each tensor as soon as it is complete; ``"file"`` yields them in the order of
            their bytes in the shards. With `group`, all ranks have the same order.
        verify: With ``"auto"``, an object is compared when its last tensor is yielded, so use the tensors only after
            the loop has ended.

    Returns:
        A `Stream`. Its ``report`` is complete after the loop; leaving the loop early cancels the rest.

    Raises:
        StreamerError: as for `streamer.load`; from the call before the first weight byte is read, later from the loop.

    Example:
        >>> with streamer.stream("s3://bucket/model") as tensors:      # doctest: +SKIP
        ...     for name, tensor in tensors:
        ...         consume(name, tensor)
        >>> print(tensors.report)                                      # doctest: +SKIP
    """
    uri, how = hidden_arguments(uri, how)
    return begun(request_of(stream, uri, how), order)


def _reads_of_group(
    checkpoint: OpenedCheckpoint, wanted: list[ShardTensor], *, is_verified: bool
) -> SharedReads | None:
    if checkpoint.member is None:
        return None
    from streamer.core.group.start import SharedReads  # noqa: PLC0415 (takes 15 ms, and few loads have a group)

    digests = checkpoint.tensor_digests() if is_verified else ()
    catalog, settings, distrust = checkpoint.catalog, checkpoint.settings, checkpoint.cache.distrust
    return SharedReads(checkpoint.member, catalog, wanted, settings, digests=digests, distrust=distrust)


def begun(request: Request, order: Order) -> Stream[Any]:
    """Begin to stream; raises as `stream` does."""
    with joined_group(request) as member:
        if order not in ("completion", "file"):
            raise OptionError(f'order is "completion" or "file", not {order!r}')
        library = framework_for(request)
        checkpoint = open_checkpoint(request, member=member, any_format=True)
        wanted = wanted_tensors(checkpoint, request)
        verification = checkpoint.verification(wanted)
        return Stream(checkpoint, wanted, library, verification, order=order, progress=request.progress)
