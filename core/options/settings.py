"""What the engine runs with: the user's options, the rest chosen for this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from streamer.core.options.limits import Limits
from streamer.core.options.machine import memory_bytes
from streamer.core.options.options import GIB, MIB, Options
from streamer.core.outages.meter import OutageMeter

__all__ = ["Settings", "resolve"]

DEFAULT_FILE_BLOCK_BYTES = 8 * MIB  # from the page cache 4 MiB costs a tenth more CPU, 16 MiB saves nothing
FIRST_HTTP_BLOCK_BYTES = 1 * MIB  # native/net/request_size.h grows it where the server likes larger ones
LARGEST_HTTP_BLOCK_BYTES = 8 * MIB  # beyond, the end of a load waits for few requests
DEFAULT_NFS_BLOCK_BYTES = 4 * MIB  # four reads of the usual 1 MiB, so that one look at the version serves four
DEFAULT_PYTHON_BLOCK_BYTES = 8 * MIB  # a request of a Python file system is dear
DEFAULT_NFS_THREADS = 4
DEFAULT_PYTHON_THREADS = 8
LARGEST_DEFAULT_LIMIT_BYTES = 2 * GIB
SMALLEST_DEFAULT_LIMIT_BYTES = 64 * MIB


@dataclass(frozen=True)
class Settings:
    """`Options` without an open question, but for those that depend on what is read; units as there.

    `file_threads`, `direct_io` and `gpudirect` may be None, see `streamer.core.engine.file_tuning`; `http_reactors` and
    `http_in_flight`, see `streamer.core.engine.http_tuning`. `io_uring` too: the engine finds out whether it can have
    one.
    `began` is the monotonic time from which `deadline_s` counts; None: from the beginning of each read.
    `meter` adds up what was waited for before the tensors were read.
    """

    file_block_bytes: int
    http_block_bytes: int
    http_first_block_bytes: int
    nfs_block_bytes: int
    python_block_bytes: int
    file_threads: int | None
    direct_io: bool | None
    io_uring: bool | None
    http_reactors: int | None
    http_in_flight: int | None
    nfs_threads: int
    python_threads: int
    memory_limit_bytes: int
    pinned_bytes: int
    gpudirect: bool | None
    coalesce_gap_bytes: int
    limits: Limits
    header_bytes: int
    max_attempts: int
    block_deadline_s: float
    hedge_percent: float
    deadline_s: float | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    stall_timeout_s: float
    stall_bytes_per_s: float
    max_rank: int
    began: float | None = None
    meter: OutageMeter = field(default_factory=OutageMeter, compare=False)


def resolve(options: Options | None) -> Settings:
    """Fill in what the user left open: the environment first, then this machine.

    Raises:
        OptionError: a ``STREAMER_*`` variable is not a number or out of its bounds.
    """
    given = (options or Options()).filled_from_environment()
    return Settings(
        file_block_bytes=given.block_bytes or DEFAULT_FILE_BLOCK_BYTES,
        http_block_bytes=given.block_bytes or LARGEST_HTTP_BLOCK_BYTES,
        http_first_block_bytes=given.block_bytes or FIRST_HTTP_BLOCK_BYTES,
        nfs_block_bytes=given.block_bytes or DEFAULT_NFS_BLOCK_BYTES,
        python_block_bytes=given.block_bytes or DEFAULT_PYTHON_BLOCK_BYTES,
        file_threads=given.file_threads,
        direct_io=given.direct_io,
        io_uring=given.io_uring,
        http_reactors=given.http_reactors,
        http_in_flight=given.http_in_flight,
        nfs_threads=given.nfs_threads or DEFAULT_NFS_THREADS,
        python_threads=given.python_threads or DEFAULT_PYTHON_THREADS,
        memory_limit_bytes=given.memory_limit_bytes or _default_memory_limit_bytes(),
        pinned_bytes=given.pinned_bytes,
        gpudirect=given.gpudirect,
        coalesce_gap_bytes=given.coalesce_gap_bytes,
        limits=Limits(
            answer_bytes=given.answer_bytes,
            listing_entries=given.listing_entries,
            listing_empty_pages=given.listing_empty_pages,
            connect_timeout_s=given.connect_timeout_s,
            first_byte_timeout_s=given.first_byte_timeout_s,
        ),
        header_bytes=given.header_bytes,
        max_attempts=given.max_attempts,
        block_deadline_s=given.block_deadline_s,
        hedge_percent=given.hedge_percent,
        deadline_s=given.deadline_s,
        connect_timeout_s=given.connect_timeout_s,
        first_byte_timeout_s=given.first_byte_timeout_s,
        stall_timeout_s=given.stall_timeout_s,
        stall_bytes_per_s=given.stall_bytes_per_s,
        max_rank=given.max_rank,
        began=time.monotonic(),
    )


def _default_memory_limit_bytes() -> int:
    return max(SMALLEST_DEFAULT_LIMIT_BYTES, min(LARGEST_DEFAULT_LIMIT_BYTES, memory_bytes() // 8))
