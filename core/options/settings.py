"""What the engine runs with: the user's options, completed for this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import Any

from streamer.core.options.deadline import Deadline
from streamer.core.options.environment_names import warn_of_typos
from streamer.core.options.limits import Limits
from streamer.core.options.machine import free_bytes, memory_bytes, processors
from streamer.core.options.neighbours import sharers
from streamer.core.options.options import GIB, MIB, Options
from streamer.core.outages.earlier_counters import EarlierCounters

__all__ = ["Settings", "resolve"]

DEFAULT_FILE_BLOCK_BYTES = 8 * MIB  # from the page cache 4 MiB costs a tenth more CPU, 16 MiB saves nothing
FIRST_HTTP_BLOCK_BYTES = 1 * MIB  # native/net/request_size.h grows it where the server likes larger ones
LARGEST_HTTP_BLOCK_BYTES = 8 * MIB  # beyond, the end of a load waits for few requests
DEFAULT_NFS_BLOCK_BYTES = 4 * MIB  # four reads of the usual 1 MiB, so that one look at the version serves four
DEFAULT_PYTHON_BLOCK_BYTES = 8 * MIB  # a request of a Python file system is dear
SMALLEST_DEFAULT_LIMIT_BYTES = 64 * MIB
SUFFICIENT_LIMIT_BYTES = 2 * GIB  # what some thirty processors have in flight
LIMIT_BYTES_PER_PROCESSOR = 64 * MIB  # one request in flight, or read by a thread, for each 8 MiB


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """`Options` in which every field has a value, but for those that depend on what is read.

    `file_threads`, `direct_io` and `gpudirect` may be None (`streamer.core.engine.file_tuning` chooses them), and so
    may `pinned_bytes` (`ring_tuning`), `http_reactors`, `http_in_flight`, `nfs_threads` and `python_threads`
    (`http_tuning` and `thread_tuning`) and `io_uring` (the engine tries it).

    Attributes:
        file_block_bytes: `block_bytes` for files; chosen here, as the others, where the user set none.
        http_block_bytes: The largest over HTTP.
        http_first_block_bytes: The first over HTTP.
        nfs_block_bytes: Over NFS without a mount.
        python_block_bytes: For sources in Python.
        limits: The most to take of a server's answers while a checkpoint is located.
        max_bytes_per_second: 0: no limit.
        first_memory_limit_bytes: Until `ReadSession.set_memory_limit` is called; 0: `memory_limit_bytes`.
        began: Monotonic time from which `deadline_s` counts; None: from the beginning of each read.
        earlier: Counts what happens before the tensors are read.
    """

    memory_limit_bytes: int
    max_bytes_per_second: int
    file_block_bytes: int
    http_block_bytes: int
    http_first_block_bytes: int
    nfs_block_bytes: int
    python_block_bytes: int
    limits: Limits
    first_memory_limit_bytes: int = 0
    began: float | None = None
    earlier: EarlierCounters = field(default_factory=EarlierCounters, compare=False)

    @property
    def deadline(self) -> Deadline:
        """The time of the load, or, where it is not known when that began, of what begins now."""
        return Deadline(self.began or time.monotonic(), self.deadline_s)

    def __post_init__(self) -> None:
        """Check nothing: the options were checked when they were made."""


def resolve(options: Options | None) -> Settings:
    """Complete the options: from the environment first, then for this machine.

    Raises:
        OptionError: a ``STREAMER_*`` variable is not a number or out of its bounds.
    """
    user = (options or Options()).filled_from_environment()
    warn_of_typos(each.name for each in fields(Options))
    chosen = {
        "max_bytes_per_second": user.max_bytes_per_second or 0,
        "memory_limit_bytes": user.memory_limit_bytes or _default_memory_limit_bytes(),
    }
    return Settings(
        **{**_fields_of(Options, user), **chosen},
        file_block_bytes=user.block_bytes or DEFAULT_FILE_BLOCK_BYTES,
        http_block_bytes=user.block_bytes or LARGEST_HTTP_BLOCK_BYTES,
        http_first_block_bytes=user.block_bytes or FIRST_HTTP_BLOCK_BYTES,
        nfs_block_bytes=user.block_bytes or DEFAULT_NFS_BLOCK_BYTES,
        python_block_bytes=user.block_bytes or DEFAULT_PYTHON_BLOCK_BYTES,
        limits=Limits(**_fields_of(Limits, user)),
        began=time.monotonic(),
    )


def _fields_of(kind: type[Options] | type[Limits], options: Options) -> dict[str, Any]:
    """Take the options that `kind` has a field for."""
    return {each.name: getattr(options, each.name) for each in fields(kind) if hasattr(options, each.name)}


def _default_memory_limit_bytes() -> int:
    wanted = max(SUFFICIENT_LIMIT_BYTES, LIMIT_BYTES_PER_PROCESSOR * processors())
    own = min(wanted, memory_bytes() // 8, free_bytes() // 2) // sharers()
    return max(SMALLEST_DEFAULT_LIMIT_BYTES, own)
