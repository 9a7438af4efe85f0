"""The processors and the memory that this process may use, including a container's limits.

A container whose quota allows 4 of 192 processors still sees all of them; 192 threads would only be stopped for the
rest of each period. Limits are those of the process's control group and of all groups above it, in either version
(https://docs.kernel.org/admin-guide/cgroup-v2.html: ``cpu.max``, ``memory.max``; cgroup-v1/: ``cpu.cfs_quota_us``,
``memory.limit_in_bytes``). The groups are looked up once, their free memory each time. Guarantees: a file that cannot
be read sets no limit; no function here raises.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path

__all__ = ["free_bytes", "memory_bytes", "processors", "swap_bytes"]

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def processors() -> int:
    """Return the number of processors that this process may use; at least 1, and a fraction counts as one."""
    return max(1, min([len(os.sched_getaffinity(0)), *_processor_limits()]))


@lru_cache(maxsize=1)
def memory_bytes() -> int:
    """Return the bytes of memory that this process may use; the use by other processes is not subtracted."""
    limits = (_memory_limit(*group) for group in _groups("memory"))
    return min([_physical_bytes(), *(each for each in limits if each is not None)])


@lru_cache(maxsize=1)
def swap_bytes() -> int:
    """Return the bytes of swap space; the use by other processes is not subtracted."""
    return _of_machine().get("SwapTotal", 0)


def free_bytes() -> int:
    """Return the bytes of memory that this process can still get now, including the kernel's file cache and swap.

    The result is never too small: a group's limit of swap space is ignored.
    """
    machine = _of_machine()
    free_in_groups = (_free_in(*group) for group in _groups("memory"))
    free = [each for each in free_in_groups if each is not None]
    return min([machine.get("MemAvailable", memory_bytes()), *free]) + machine.get("SwapFree", 0)


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_limit(group: Path, is_unified: bool) -> int | None:
    text = _text(group / ("memory.max" if is_unified else "memory.limit_in_bytes"))
    return int(text) if text.isdecimal() else None


def _free_in(group: Path, is_unified: bool) -> int | None:
    """Return the free bytes of a group, including its file cache; None if it has no limit."""
    limit = _memory_limit(group, is_unified)
    if limit is None or limit >= _physical_bytes():  # the machine is full before the group
        return None
    used = _text(group / ("memory.current" if is_unified else "memory.usage_in_bytes"))
    if not used.isdecimal():
        return None
    prefix = "" if is_unified else "total_"
    stat = _numbers(_text(group / "memory.stat"))
    cached = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return max(0, limit - int(used) + cached)


def _of_machine() -> dict[str, int]:
    """Return the numbers of ``/proc/meminfo`` in bytes."""
    return {name.rstrip(":"): kibibytes << 10 for name, kibibytes in _numbers(_text(MEMORY)).items()}


def _numbers(text: str) -> dict[str, int]:
    """Parse lines of a name and a number; a unit after the number is ignored."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


@lru_cache(maxsize=1)
def _processor_limits() -> list[int]:
    limits = []
    for group, is_unified in _groups("cpu"):
        legacy_names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # microseconds; a quota of -1 is no limit
        text = _text(group / "cpu.max") if is_unified else " ".join(_text(group / name) for name in legacy_names)
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            limits.append(math.ceil(int(quota) / int(period)))
    return limits


@lru_cache(maxsize=2)
def _groups(controller: str) -> list[tuple[Path, bool]]:
    """Return the folders of this process's groups, from its own upwards, and whether each has the unified version."""
    groups = []
    lines = [line.split(":", 2) for line in _text(MEMBERSHIP).splitlines()]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        is_unified = not controllers
        if not is_unified and controller not in controllers.split(","):
            continue
        mount = GROUPS if is_unified else GROUPS / controller
        # In a container the path may be of the host, but the mount of the container: then only the mount's top exists.
        own = mount / path.lstrip("/")
        groups += [(folder, is_unified) for folder in (own, *own.parents) if folder.is_relative_to(mount)]
    return groups


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii").strip()  # opening as text imports a codec: 0.3 ms
    except (OSError, ValueError):
        return ""
