"""The settings of the engine: the user's options, completed for this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamer.core.imported import if_imported
from streamer.core.options.limits import Deadline, Limits
from streamer.core.options.machine import free_bytes, local_rank, local_ranks, memory_bytes, processors, sharers
from streamer.core.options.options import GIB, MIB, Options
from streamer.core.options.switches_and_sizes import warn_of_typos
from streamer.core.outages.counters import EarlierCounters

if TYPE_CHECKING:
    from streamer.core.findings import Findings
    from streamer.core.trace.tracer import Tracer
    from streamer.core.trace.watcher import Watcher

DEFAULT_FILE_BLOCK_BYTES = 8 * MIB  # from the page cache, 4 MiB costs a tenth more CPU, 16 MiB saves nothing
FIRST_HTTP_BLOCK_BYTES = 1 * MIB  # native/net/request_size.h grows it if the server is faster with larger requests
LARGEST_HTTP_BLOCK_BYTES = 8 * MIB  # with larger blocks, the end of a load waits for few requests
DEFAULT_NFS_BLOCK_BYTES = 4 * MIB  # four reads of the usual 1 MiB share one check of the version
DEFAULT_PYTHON_BLOCK_BYTES = 8 * MIB  # a request of a Python file system is expensive
SMALLEST_DEFAULT_LIMIT_BYTES = 64 * MIB
SUFFICIENT_LIMIT_BYTES = 2 * GIB  # about thirty processors have this many bytes in flight
LIMIT_BYTES_PER_PROCESSOR = 64 * MIB  # one request in flight, or read by a thread, for each 8 MiB


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)  # as options; methods that nobody calls cost a start
class Settings(Options):
    """`Options` in which every field has a value, except fields that depend on the storage of the load.

    `file_threads`, `direct_io`, `gpudirect`, `pinned_bytes`, `http_reactors`, `http_in_flight`, `nfs_threads` and
    `python_threads` may be None (`streamer.core.engine.tuning` chooses them), and so may `io_uring` (the engine tries
    it).
    """

    memory_limit_bytes: int
    max_bytes_per_second: int  # limit of the rate; 0 for no limit
    file_block_bytes: int  # `block_bytes` for files; this and the next four are chosen here if the user set none
    http_block_bytes: int  # largest block over HTTP
    http_first_block_bytes: int  # first block over HTTP
    nfs_block_bytes: int  # block over NFS without a mount
    python_block_bytes: int  # block of sources in Python
    limits: Limits  # bounds of a server's answers while a checkpoint is located
    # Limit until `ReadSession.set_memory_limit` is called; 0 for `memory_limit_bytes`.
    first_memory_limit_bytes: int = 0
    # Memory limit of all processes together that share what they read.
    node_limit_bytes: int = SMALLEST_DEFAULT_LIMIT_BYTES
    began: float | None = None  # monotonic time from which `deadline_s` counts; None for the beginning of each read
    # Counters of the load before the tensors are read.
    earlier: EarlierCounters = field(default_factory=EarlierCounters, compare=False)
    # What another process has found already, or is to be told; None unless processes open together.
    findings: Findings | None = field(default=None, compare=False, repr=False)
    # What writes the file of `trace`, or None; it is one of the watchers.
    tracer: Tracer | None = field(default=None, compare=False, repr=False)
    watchers: tuple[Watcher, ...] = field(default=(), compare=False, repr=False)

    def traced(self, category: str, name: str, **facts: Any) -> AbstractContextManager[Any]:
        """Return a context manager: watchers see what the calling thread does in the block."""
        if not self.watchers:
            return nullcontext()
        stack = ExitStack()
        for each in self.watchers:
            stack.enter_context(each.during(category, name, **facts))
        return stack

    def watched(self, kind: str, uri: str) -> AbstractContextManager[None]:
        """Return a context manager that tells watchers of the error that ends a load, a save or a copy."""
        return self._told_of_errors(kind, uri) if self.watchers else nullcontext()

    @contextmanager
    def _told_of_errors(self, kind: str, uri: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except BaseException as error:
            self.trace_end(kind, uri, 0, time.monotonic() - began, is_complete=False, error=error)
            raise

    def trace_end(
        self,
        kind: str,
        uri: str,
        size_bytes: int,
        seconds: float,
        bound_by: Mapping[str, float] = MappingProxyType({}),
        *,
        is_complete: bool = True,
        error: BaseException | None = None,
        **facts: Any,
    ) -> None:
        """Tell watchers what a load, a save or a copy did; the file of a trace is written."""
        told = {"kind": kind, "uri": uri, "bytes": size_bytes, "seconds": seconds, "is_complete": is_complete}
        limit = {"max_bytes_per_second": self.max_bytes_per_second} if self.max_bytes_per_second else {}
        for each in self.watchers:
            each.end({**told, **limit, **facts}, bound_by, error)

    @property
    def deadline(self) -> Deadline:
        """The deadline of the load; without a begin, it counts from now."""
        return Deadline(self.began or time.monotonic(), self.deadline_s)

    def __post_init__(self) -> None:
        """Skip the checks of `Options`: the options were checked when they were made."""


def resolve(options: Options | None) -> Settings:
    """Complete the options: from the environment first, then for this machine."""
    user = (options or Options()).filled_from_environment()
    tracer = _tracer(user.trace) if user.trace else None
    warn_of_typos(each.name for each in fields(Options))
    chosen = {
        "max_bytes_per_second": user.max_bytes_per_second or 0,
        "memory_limit_bytes": user.memory_limit_bytes or _default_memory_limit_bytes(),
    }
    return Settings(
        **{**{each.name: getattr(user, each.name) for each in fields(Options)}, **chosen},
        file_block_bytes=user.block_bytes or DEFAULT_FILE_BLOCK_BYTES,
        http_block_bytes=user.block_bytes or LARGEST_HTTP_BLOCK_BYTES,
        http_first_block_bytes=user.block_bytes or FIRST_HTTP_BLOCK_BYTES,
        nfs_block_bytes=user.block_bytes or DEFAULT_NFS_BLOCK_BYTES,
        python_block_bytes=user.block_bytes or DEFAULT_PYTHON_BLOCK_BYTES,
        limits=Limits(**{name: getattr(user, name) for name in Limits._fields if hasattr(user, name)}),
        node_limit_bytes=user.memory_limit_bytes or chosen["memory_limit_bytes"] * sharers(),
        began=time.monotonic(),
        tracer=tracer,
        watchers=_watchers(tracer),
    )


def _tracer(path: Any) -> Tracer:
    from streamer.core.trace.tracer import tracer_of  # noqa: PLC0415 (few loads are traced)

    return tracer_of(path, local_ranks(), local_rank())


def _watchers(tracer: Tracer | None) -> tuple[Watcher, ...]:
    watchers: list[Watcher | None] = [tracer]
    if "NVTX_INJECTION64_PATH" in os.environ:
        from streamer.core.trace.nvtx import nvtx_ranges  # noqa: PLC0415 (Nsight is seldom there)

        watchers.append(nvtx_ranges())
    if if_imported("opentelemetry.trace") or if_imported("opentelemetry.metrics"):
        from streamer.core.trace.open_telemetry import OpenTelemetry  # noqa: PLC0415 (as above)

        watchers.append(OpenTelemetry())
    return tuple(each for each in watchers if each is not None)


def _default_memory_limit_bytes() -> int:
    wanted = max(SUFFICIENT_LIMIT_BYTES, LIMIT_BYTES_PER_PROCESSOR * processors())
    own = min(wanted, memory_bytes() // 8, free_bytes() // 2) // sharers()
    return max(SMALLEST_DEFAULT_LIMIT_BYTES, own)
