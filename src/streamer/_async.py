"""Loads and streams for asyncio: the event loop continues while they wait and read.

Each step runs in its own daemon thread and returns the tensors that are ready. Nothing waits for this thread: a
cancelled task closes its stream, and the thread closes any result that it still produces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from streamer._arguments import request_of
from streamer._load import WholeRead, collected, whole_read
from streamer._reads import Order
from streamer._stream import Stream, begun
from streamer.core.checkpoint.report import LoadReport
from streamer.core.errors import UsageError
from streamer.core.request.request import UriOption
from streamer.core.store.parallel import in_thread
from streamer.core.tensors.frameworks import TensorT

if TYPE_CHECKING:
    import torch
    from fsspec import AbstractFileSystem
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from streamer._arguments import LoadArguments, StreamArguments
    from streamer.core.checkpoint.selection import NamesOption
    from streamer.core.checkpoint.slices import SlicesOption
    from streamer.core.encryption.keys import KeyOption
    from streamer.core.options.options import Options
    from streamer.core.request.request import ProgressOption, StorageOptions
    from streamer.core.tensors.frameworks import NumpyName, TorchName
    from streamer.core.verification.strategy import VerifyOption

Result = TypeVar("Result")

# A step ends at this many bytes or tensors. Larger steps keep more tensors waiting; smaller steps cost too much time.
STEP_BYTES = 16 << 20
STEP_TENSORS = 256
# Ready tensors are handed out without a pause for this time; then other tasks of the event loop run.
TURN_S = 0.0005


class AsyncStream(Generic[TensorT]):
    """An asynchronous iterator of ``(name, tensor)`` and a context manager; `streamer.astream` returns one.

    Reading starts with the first ``async for`` or ``async with``. Only one task at a time may iterate.
    """

    def __init__(self, start: Callable[[], Stream[TensorT]]) -> None:
        self._start = start
        self._stream: Stream[TensorT] | None = None
        self._ready: list[tuple[str, TensorT]] = []  # in reverse order
        self._turn_began = 0.0

    @property
    def report(self) -> LoadReport:
        """The report of the load so far; complete once the loop has ended.

        Raises:
            UsageError: reading has not started.
        """
        if self._stream is None:
            raise UsageError("the stream has not started", hint="Use it in async for or async with first")
        return self._stream.report

    async def aclose(self) -> None:
        """Stop reading, and wait until it has stopped. Tensors already yielded stay valid."""
        self._ready.clear()
        if self._stream is not None:
            await asyncio.shield(asyncio.ensure_future(in_thread(self._stream.close, role="async")))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, TensorT]:
        if self._ready and time.monotonic() - self._turn_began > TURN_S:
            await self._closing_if_cancelled(asyncio.sleep(0))
            self._turn_began = time.monotonic()
        if not self._ready:
            started = await self._started()
            self._ready = await self._closing_if_cancelled(in_thread(partial(_step, started), role="async"))
            self._ready.reverse()
            self._turn_began = time.monotonic()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _started(self) -> Stream[TensorT]:
        if self._stream is None:
            self._stream = await in_thread(self._start, role="async", discard=Stream.close)
        return self._stream

    async def _closing_if_cancelled(self, step: Awaitable[Result]) -> Result:
        try:
            return await step
        except asyncio.CancelledError:
            await self.aclose()
            raise


@overload
def astream(
    uri: UriOption, *, framework: TorchName = ..., **how: Unpack[StreamArguments]
) -> AsyncStream[torch.Tensor]: ...
@overload
def astream(uri: UriOption, *, framework: NumpyName, **how: Unpack[StreamArguments]) -> AsyncStream[NDArray[Any]]: ...
@overload
def astream(uri: UriOption, *, framework: str, **how: Unpack[StreamArguments]) -> AsyncStream[Any]: ...
def astream(  # noqa: D417  `load` describes the others
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
) -> AsyncStream[Any]:
    """Stream the tensors of a checkpoint, as `streamer.stream` does, without blocking the event loop.

    If the task is cancelled, the stream ends within a second. During the search for the checkpoint, the request in
    progress ends in the background, with its own time-out.

    Args:
        uri: As for `streamer.stream`, like the keyword arguments that are not described here.
        order: As for `streamer.stream`.
        progress: A callable runs in another thread.

    Raises:
        StreamerError: as for `streamer.stream`, from the loop.

    Example:
        >>> async with streamer.astream("s3://bucket/model") as tensors:      # doctest: +SKIP
        ...     async for name, tensor in tensors:
        ...         await consume(name, tensor)
    """
    arguments = locals()
    return AsyncStream(lambda: begun(request_of(arguments), order))


@overload
async def aload(
    uri: UriOption, *, framework: TorchName = ..., **how: Unpack[LoadArguments]
) -> dict[str, torch.Tensor]: ...
@overload
async def aload(uri: UriOption, *, framework: NumpyName, **how: Unpack[LoadArguments]) -> dict[str, NDArray[Any]]: ...
@overload
async def aload(uri: UriOption, *, framework: str, **how: Unpack[LoadArguments]) -> dict[str, Any]: ...
async def aload(  # noqa: D417  `load` describes the others
    uri: UriOption,
    *,
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
) -> dict[str, Any]:
    """Load a checkpoint, as `streamer.load` does, without blocking the event loop.

    If the task is cancelled, the load ends in the same way as `astream`.

    Args:
        uri: As for `streamer.load`, like the keyword arguments that are not described here.
        progress: A callable runs in another thread.

    Raises:
        StreamerError: as for `streamer.load`.

    Example:
        >>> tensors = await streamer.aload("s3://bucket/model")     # doctest: +SKIP
    """
    arguments = locals()
    tensors = await in_thread(lambda: whole_read(request_of(arguments)), role="async", discard=WholeRead.close)
    try:
        return await in_thread(partial(collected, tensors), role="async")
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(in_thread(tensors.close, role="async")))
        raise


def _step(tensors: Stream[TensorT]) -> list[tuple[str, TensorT]]:
    """Take the next tensor and those that are ready after it; an empty list at the end of the stream."""
    taken: list[tuple[str, TensorT]] = []
    size_bytes = 0
    for name, tensor in tensors:
        taken.append((name, tensor))
        size_bytes += tensor.nbytes  # type: ignore[attr-defined]  # tensors of torch and numpy have it
        if not tensors.is_next_ready or size_bytes >= STEP_BYTES or len(taken) == STEP_TENSORS:
            break
    return taken
