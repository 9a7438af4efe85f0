"""What this process may use of its machine: processors and memory, a container's limits included.

A container that was given 4 of 192 processors by a quota still sees all of them; as many threads would only be stopped
for the rest of each period. Limits are those of the process's control group and of all above it, in either version
(https://docs.kernel.org/admin-guide/cgroup-v2.html: ``cpu.max``, ``memory.max``; cgroup-v1/: ``cpu.cfs_quota_us``,
``memory.limit_in_bytes``), read once. Guarantees: what cannot be read is no limit; nothing here raises.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["memory_bytes", "processors"]

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def processors() -> int:
    """Count the processors whose time this process may use; at least 1, a fraction counts as one."""
    return max(1, min([len(os.sched_getaffinity(0)), *_processor_limits()]))


@lru_cache(maxsize=1)
def memory_bytes() -> int:
    """Size the memory this process may use, in bytes; what others use of it is not considered."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [int(text) for text in _texts("memory", "memory.max", "memory.limit_in_bytes") if text.isdecimal()]
    return min([machine, *limits])


@lru_cache(maxsize=1)
def _processor_limits() -> list[int]:
    return [math.ceil(quota / period) for quota, period in _quotas() if quota > 0 and period > 0]


def _quotas() -> Iterator[tuple[int, int]]:
    """Give microseconds of processor time in each period, and the period's."""
    for text in _texts("cpu", "cpu.max", None):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            yield int(quota), int(period)
    quotas = _texts("cpu", None, "cpu.cfs_quota_us")  # -1: none
    periods = _texts("cpu", None, "cpu.cfs_period_us")
    for quota, period in zip(quotas, periods, strict=True):
        if quota.isdecimal() and period.isdecimal():
            yield int(quota), int(period)


def _texts(controller: str, unified_name: str | None, legacy_name: str | None) -> list[str]:
    """Read a file of each of this process's groups, from its own upwards; "" where there is none."""
    return [
        _text(folder / name)
        for mount, path in _memberships(controller)
        if (name := unified_name if mount == GROUPS else legacy_name)
        # In a container the path may be the host's, and the mount the container's own: then only its top is there.
        for folder in (mount / path, *(mount / path).parents)
        if folder.is_relative_to(mount)
    ]


def _memberships(controller: str) -> Iterator[tuple[Path, str]]:
    """Give where the controller is mounted and the group's path there; the unified hierarchy at `GROUPS` itself."""
    lines = [line.split(":", 2) for line in _text(MEMBERSHIP).splitlines()]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if not controllers:
            yield GROUPS, path.lstrip("/")
        elif controller in controllers.split(","):
            yield GROUPS / controller, path.lstrip("/")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
