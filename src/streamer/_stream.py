"""A checkpoint as an iterator of tensors, each of which belongs to the consumer.

A tensor is yielded exactly once, when all its bytes have arrived. If anything fails, the loop raises; if the loop ends,
every wanted tensor was yielded. Leaving the loop early cancels the rest within a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, overload

from streamer import _native
from streamer._arguments import request_of
from streamer._checkpoint_headers import OpenedCheckpoint, framework_for, open_checkpoint, wanted_tensors
from streamer._progress import Progress
from streamer._reads import Order, reads_of
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.report import LoadReport, device_path, gpudirect_remarks, load_report
from streamer.core.collector import collector_paused
from streamer.core.errors import ChecksumError, EngineError, LoadCancelledError, OptionError, UsageError
from streamer.core.group.joining import joined_group
from streamer.core.log import OwnLogger
from streamer.core.request.request import ProgressOption, Request, UriOption
from streamer.core.tensors.frameworks import Framework, TensorT

if TYPE_CHECKING:
    import torch
    from fsspec import AbstractFileSystem
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from streamer._arguments import StreamArguments
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.checkpoint.targets import Targets
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.tensors.frameworks import NumpyName, TorchName
    from streamer.core.verification.strategy import Verification, VerifyOption

_log = OwnLogger()

BATCH_BYTES = 32 << 20  # tensors of a batch no longer count against the memory limit, and may be cast or moved
ENOUGH_BYTES = 64 << 20  # a consumer that keeps all tensors waits for as many, so that readers use its processor
_TOLD = ("tensors", "is_complete", "requests", "retries", "cached_bytes", "shared_bytes")  # to watchers


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
        self._checkpoint = checkpoint
        self._reads = reads_of(checkpoint, wanted, framework, verification, targets)
        self._wanted, self._verification = self._reads.wanted, self._reads.verification
        self._destinations, self._plan = self._reads.destinations, self._reads.plan
        self._started = time.perf_counter()
        self._ended: float | None = None
        self._yielded = 0
        self._batch: deque[int] = deque()
        self._is_closing = False
        self._failure: BaseException | None = None  # what ends the stream too early
        self._reading = threading.Lock()
        self._progress = Progress(progress, self._plan.span_bytes, checkpoint.label)
        self._session = self._reads.started(order, self._progress)

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
        settings, verification = self._checkpoint.settings, self._verification
        stats, packed = self._reads.added_to(self._session.stats()), settings.earlier.packed
        path = device_path(self._reads.device_paths(), stats)
        peer_bytes = self._checkpoint.cache.peer_bytes()
        read_bytes = self._reads.read_bytes - stats["cached_bytes"] - sum(peer_bytes.values())
        shards = {each.shard: self._checkpoint.catalog.shards[each.shard].source for each in self._wanted}
        return load_report(
            self._checkpoint.label,
            {**stats, "cached_bytes": stats["cached_bytes"] + packed.cached_bytes},
            settings.earlier,
            stages={**self._checkpoint.stages, "read": (self._ended or time.perf_counter()) - self._started},
            bytes_read=max(0, read_bytes + packed.packed_bytes - packed.cached_bytes - packed.unpacked_bytes),
            shared_bytes=self._reads.copied_bytes,
            peer_bytes=peer_bytes,
            sources=list(shards.values()),
            remarks=[
                *self._checkpoint.remarks,
                *self._destinations.remarks(),
                *self._checkpoint.cache.remarks(),
                *([] if settings.tracer is None else settings.tracer.remarks()),
                *gpudirect_remarks(path, stats, is_asked=bool(settings.gpudirect)),
            ],
            verified=verification.checks(self._session.compares_answers) if verification else (),
            device_path=path,
            is_complete=self._yielded == len(self._wanted),
            metadata=self._checkpoint.catalog.metadata,
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
        is_first, self._ended = self._ended is None, self._ended or time.perf_counter()
        settings = self._checkpoint.settings
        if is_first and settings.watchers:
            try:
                report = self.report
            except EngineError:  # in a forked child; the parent will tell
                return
            facts: dict[str, Any] = {name: getattr(report, name) for name in _TOLD}
            failure, self._failure = self._failure, None
            told = report.uri, report.bytes, report.seconds, report.bound_by
            settings.trace_end("load", *told, error=failure, **facts)

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
        self._note(error)
        self.close()

    def _note(self, error: BaseException | None) -> None:
        if self._checkpoint.settings.watchers and self._ended is None:  # else nobody would end the cycle of references
            self._failure = self._failure or error

    def _begin_reading(self) -> None:
        if not self._reading.acquire(blocking=False):
            raise UsageError(
                "the stream is read by another thread, or by its own progress callback",
                uri=self._checkpoint.label,
                hint="Let one thread read it and pass the tensors on, or open a stream for each thread",
            )

    def _finished_items(self, enough_bytes: int = 0) -> list[int]:
        try:
            items = self._session.next_items(enough_bytes)
        except BaseException as error:
            if isinstance(error, ChecksumError):  # the next load is to read from the storage
                for each in self._wanted:
                    if each.entry.name == error.tensor:
                        self._checkpoint.cache.distrust(each.shard)
            self._note(error)
            raise
        if not items:
            self._finish()
        return items

    def _take(self, items: list[int]) -> list[tuple[str, Any]]:
        with self._checkpoint.settings.traced("hand_over", "hand over", tensors=len(items)):
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
            with self._checkpoint.settings.traced("verify", "compare digests", tensors=len(items)):
                for item, memory in zip(items, memories, strict=True):
                    verification.take(item, self._destinations.bytes_of(item, memory), self._session.digest_pieces)
        except BaseException as error:
            self._note(error)
            self.close()  # nothing more may be handed out
            raise

    def __reduce__(self) -> NoReturn:
        hint = "Give the other process the URI, and stream there"
        raise UsageError("a stream belongs to the process that began it", uri=self._checkpoint.label, hint=hint)

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
        if self._checkpoint.logs_reads:
            _log.info("%s", report)
        if report.verified:
            from streamer.core.verification.strategy import log_unverified  # noqa: PLC0415 (as needed)

            log_unverified(report.uri, report.verified)


@overload
def stream(uri: UriOption, *, framework: TorchName = ..., **how: Unpack[StreamArguments]) -> Stream[torch.Tensor]: ...
@overload
def stream(uri: UriOption, *, framework: NumpyName, **how: Unpack[StreamArguments]) -> Stream[NDArray[Any]]: ...
@overload
def stream(uri: UriOption, *, framework: str, **how: Unpack[StreamArguments]) -> Stream[Any]: ...
def stream(  # noqa: D417  `load` describes the others
    uri: UriOption,
    *,
    order: Order = "completion",
    device: Any = "cpu",
    names: NamesOption = None,
    slices: SlicesOption = None,
    framework: str = "pt",
    storage_options: StorageOptions = None,
    fs: AbstractFileSystem | None = None,
    options: Options | None = None,
    progress: ProgressOption = None,
    dtype: Any = None,
    verify: VerifyOption = None,
    key: KeyOption = None,
    context: str | None = None,
    group: Any = None,
) -> Stream[Any]:
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
    return begun(request_of(locals()), order)


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
