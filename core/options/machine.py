"""What this process may use of its machine: processors and memory, a container's limits included.

A container whose quota allows 4 of 192 processors still sees all of them; 192 threads would only be stopped for the
rest of each period. Limits are those of the process's control group and of all above it, in either version
(https://docs.kernel.org/admin-guide/cgroup-v2.html: ``cpu.max``, ``memory.max``; cgroup-v1/: ``cpu.cfs_quota_us``,
``memory.limit_in_bytes``), read once; only what is free is looked up each time. Guarantees: a file that cannot be read
sets no limit; nothing here raises.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["free_bytes", "memory_bytes", "processors", "swap_bytes"]

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def processors() -> int:
    """Count the processors whose time this process may use; at least 1, a fraction counts as one."""
    return max(1, min([len(os.sched_getaffinity(0)), *_processor_limits()]))


@lru_cache(maxsize=1)
def memory_bytes() -> int:
    """Give the bytes of memory that this process may use; what other processes use of it is not subtracted."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group, is_unified in _groups("memory"):
        text = _text(group / ("memory.max" if is_unified else "memory.limit_in_bytes"))
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


@lru_cache(maxsize=1)
def swap_bytes() -> int:
    """Give the bytes of swap space; what other processes use of it is not subtracted."""
    return _of_machine("SwapTotal") or 0


def free_bytes() -> int:
    """Give the bytes of memory that this process can still get now, what the kernel caches of files and swap included.

    Never less than that: what a group may take of the swap space is not looked at.
    """
    available = _of_machine("MemAvailable")
    free = [memory_bytes() if available is None else available]
    for group, is_unified in _groups("memory"):
        limit, used = _group_memory(group, is_unified)
        if limit is not None and used is not None:
            free.append(max(0, limit - used))
    return min(free) + (_of_machine("SwapFree") or 0)


def _group_memory(group: Path, is_unified: bool) -> tuple[int | None, int | None]:
    """Give the limit of a group, and what it uses without the kernel's cache of files."""
    names = ("memory.max", "memory.current") if is_unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (int(text) if (text := _text(group / name)).isdecimal() else None for name in names)
    if limit is None or used is None:
        return limit, None
    prefix = "" if is_unified else "total_"
    cached = re.findall(rf"^{prefix}(?:in)?active_file ([0-9]+)$", _text(group / "memory.stat"), re.MULTILINE)
    return limit, used - sum(map(int, cached))


def _of_machine(name: str) -> int | None:
    match = re.search(rf"^{name}:\s*([0-9]+) kB$", _text(MEMORY), re.MULTILINE)
    return int(match[1]) << 10 if match else None


@lru_cache(maxsize=1)
def _processor_limits() -> list[int]:
    limits = []
    for group, is_unified in _groups("cpu"):
        legacy_names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # microseconds; a quota of -1 is none
        text = _text(group / "cpu.max") if is_unified else " ".join(_text(group / name) for name in legacy_names)
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            limits.append(math.ceil(int(quota) / int(period)))
    return limits


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Give the folders of this process's groups, from its own upwards, and whether each is of the unified version."""
    lines = [line.split(":", 2) for line in _text(MEMBERSHIP).splitlines()]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        is_unified = not controllers
        if not is_unified and controller not in controllers.split(","):
            continue
        mount = GROUPS if is_unified else GROUPS / controller
        # In a container the path may be the host's, and the mount the container's own: then only its top is there.
        own = mount / path.lstrip("/")
        yield from ((folder, is_unified) for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
