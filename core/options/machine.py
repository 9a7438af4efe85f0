"""The processors and the memory that this process may use, in a container too, and the loads that share the machine.

A container whose quota allows 4 of 192 processors still sees all of them; 192 threads would only be stopped for the
rest of each period. Limits are those of the process's control group and of all groups above it, in either version
(https://docs.kernel.org/admin-guide/cgroup-v2.html: ``cpu.max``, ``memory.max``; cgroup-v1/: ``cpu.cfs_quota_us``,
``memory.limit_in_bytes``). The groups are looked up once, their free memory each time. A file that cannot be read sets
no limit.

Eight ranks that each read with all processors and pin their own ring take four times as long as eight ranks that share.
The launcher's variable or torch's process group holds the number of ranks. Independent loads of this user are counted
in a file in shared memory: each running load locks one byte of the file, and the kernel unlocks the byte if the process
dies. Guarantees: no function here raises or waits; if the machine forbids the file, one load is counted.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from streamer.core.imported import if_imported
from streamer.core.secrets.environment import variable

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")

# Ranks on this machine: torchrun (and compatible launchers), Open MPI, MPICH and Intel MPI.
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
LOCAL_NUMBERS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")  # of this process, in the same order
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the file is only used if this user owns it
MOST_LOADS = 64  # bytes of the file that are used; further loads are not counted
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid


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

    The result may be too large, but not too small, because a cgroup's limit of swap space is ignored.
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


def sharers(environment: Mapping[str, str] | None = None) -> int:
    """Count the loads that share this machine: the calling load, which is not announced yet, and its neighbours."""
    return max(local_ranks(environment), _running_loads())


def local_ranks(environment: Mapping[str, str] | None = None) -> int:
    """Count the processes that were started together here; 1 if neither launcher nor torch reports a number."""
    return max(_launched_ranks(environment), _process_group_ranks())


def local_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the number of this process among those that were started together here; None if unknown."""
    texts = [variable(name, environment) or "" for name in LOCAL_NUMBERS]
    return next((int(text) for text in texts if text.isdecimal()), None)


class AnnouncedLoad:
    """A load that other loads count until `end`; `end` may be called twice."""

    def __init__(self) -> None:
        self._descriptor = _open_file()
        if self._descriptor is not None and not _lock_a_byte(self._descriptor):
            self.end()

    def end(self) -> None:
        """Release the lock, so that this load is no longer counted."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:  # a forked child may have a copy of the descriptor, which would keep the lock
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, 0, 0))
        except OSError:
            pass
        finally:
            os.close(descriptor)


def _launched_ranks(environment: Mapping[str, str] | None) -> int:
    texts = [variable(name, environment) or "" for name in LOCAL_SIZES]
    return max([1, *(int(text) for text in texts if text.isdecimal())])


def _process_group_ranks() -> int:
    """Count the ranks of torch's process group, at most one per visible device: the others run on other machines."""
    torch, distributed = if_imported("torch"), if_imported("torch.distributed")
    if torch is None or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return max(1, min(int(distributed.get_world_size()), int(torch.cuda.device_count())))


def _running_loads() -> int:
    """Count the announced loads and the calling load."""
    descriptor = _open_file()
    if descriptor is None:
        return 1
    try:
        return 1 + _locked_bytes(descriptor)
    except OSError:
        return 1
    finally:
        os.close(descriptor)


def _open_file() -> int | None:
    """Open this user's file; None if it cannot be opened or belongs to another user."""
    path = SHARED_MEMORY / f"streamer-loads-{os.geteuid()}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    return None


def _lock_a_byte(descriptor: int) -> bool:
    for number in range(MOST_LOADS):
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, number, 1))
        except BlockingIOError:
            continue
        except OSError:
            return False
        return True
    return False


def _locked_bytes(descriptor: int) -> int:
    """Count the bytes that other descriptors have locked, one by one: for a range, the kernel reports only one lock."""
    return sum(_is_locked(descriptor, number) for number in range(MOST_LOADS))


def _is_locked(descriptor: int, number: int) -> bool:
    kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, number, 1)))
    return bool(kind != fcntl.F_UNLCK)


def _lock(kind: int, begin: int, length: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, begin, length, 0)
