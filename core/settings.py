"""What the engine runs with: the user's options, the rest chosen for this machine. Pure, but for reading /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass

from streamer.core.options import GIB, MIB, Options

__all__ = ["Settings", "resolve"]

DEFAULT_FILE_BLOCK_BYTES = 8 * MIB  # from the page cache 4 MiB costs a tenth more CPU, 16 MiB saves nothing
FIRST_HTTP_BLOCK_BYTES = 1 * MIB  # native/net/request_size.h grows it where the server likes larger ones
LARGEST_HTTP_BLOCK_BYTES = 8 * MIB  # beyond, the end of a load waits for few requests
DEFAULT_NFS_BLOCK_BYTES = 4 * MIB  # four reads of the usual 1 MiB, so that one look at the version serves four
DEFAULT_PYTHON_BLOCK_BYTES = 8 * MIB  # a request of a Python file system is dear
DEFAULT_NFS_THREADS = 4
DEFAULT_PYTHON_THREADS = 8
MAX_IN_FLIGHT = 32  # at S3's 90 MB/s a connection, more than a thread can empty; reached only while it waits
LARGEST_DEFAULT_LIMIT_BYTES = 2 * GIB
SMALLEST_DEFAULT_LIMIT_BYTES = 64 * MIB


@dataclass(frozen=True)
class Settings:
    """`Options` without an open question, but for two; units as there.

    `file_threads` and `direct_io` may be None: they depend on the files, see `streamer.core.file_reading`.
    """

    file_block_bytes: int
    http_block_bytes: int
    http_first_block_bytes: int
    nfs_block_bytes: int
    python_block_bytes: int
    file_threads: int | None
    direct_io: bool | None
    http_reactors: int
    http_in_flight: int
    nfs_threads: int
    python_threads: int
    memory_limit_bytes: int
    pinned_bytes: int
    gpudirect: bool
    coalesce_gap_bytes: int
    header_bytes: int
    max_attempts: int
    block_deadline_s: float
    hedge_percent: float
    deadline_s: float | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    stall_timeout_s: float
    max_rank: int


def resolve(options: Options | None) -> Settings:
    """Fill in what the user left open: the environment first, then this machine.

    Raises:
        OptionError: a ``STREAMER_*`` variable is not a number or out of its bounds.
    """
    given = (options or Options()).filled_from_environment()
    processors = len(os.sched_getaffinity(0))
    return Settings(
        file_block_bytes=given.block_bytes or DEFAULT_FILE_BLOCK_BYTES,
        http_block_bytes=given.block_bytes or LARGEST_HTTP_BLOCK_BYTES,
        http_first_block_bytes=given.block_bytes or FIRST_HTTP_BLOCK_BYTES,
        nfs_block_bytes=given.block_bytes or DEFAULT_NFS_BLOCK_BYTES,
        python_block_bytes=given.block_bytes or DEFAULT_PYTHON_BLOCK_BYTES,
        file_threads=given.file_threads,
        direct_io=given.direct_io,
        http_reactors=given.http_reactors or min(4, processors),
        http_in_flight=given.http_in_flight or MAX_IN_FLIGHT,
        nfs_threads=given.nfs_threads or DEFAULT_NFS_THREADS,
        python_threads=given.python_threads or DEFAULT_PYTHON_THREADS,
        memory_limit_bytes=given.memory_limit_bytes or _default_memory_limit_bytes(),
        pinned_bytes=given.pinned_bytes,
        gpudirect=bool(given.gpudirect),
        coalesce_gap_bytes=given.coalesce_gap_bytes,
        header_bytes=given.header_bytes,
        max_attempts=given.max_attempts,
        block_deadline_s=given.block_deadline_s,
        hedge_percent=given.hedge_percent,
        deadline_s=given.deadline_s,
        connect_timeout_s=given.connect_timeout_s,
        first_byte_timeout_s=given.first_byte_timeout_s,
        stall_timeout_s=given.stall_timeout_s,
        max_rank=given.max_rank,
    )


def _default_memory_limit_bytes() -> int:
    eighth = _available_memory_bytes() // 8
    return max(SMALLEST_DEFAULT_LIMIT_BYTES, min(LARGEST_DEFAULT_LIMIT_BYTES, eighth))


def _available_memory_bytes() -> int:
    """Memory of the machine or of this container's cgroup (v2), whichever is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(machine, int(file.read()))
    except (OSError, ValueError):  # no cgroup v2 here, or "max": unlimited
        return machine
