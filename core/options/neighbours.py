"""Counts the loads that share this machine: the ranks of a node start together, and each must only take its part.

Eight ranks that each read with all processors and pin their own ring take four times as long as eight ranks that share.
The launcher's variable or torch's process group holds the number of ranks. Independent loads of this user are counted
in a file in shared memory: each running load locks one byte of the file, and the kernel unlocks the byte if the process
dies. Guarantees: no function here raises or waits; if the machine forbids the file, one load is counted.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from streamer.core.secrets.environment import variable

__all__ = ["AnnouncedLoad", "local_ranks", "sharers"]

# Ranks on this machine: torchrun (and compatible launchers), Open MPI, MPICH and Intel MPI.
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the file is only used if this user owns it
MOST_LOADS = 64  # bytes of the file that are used: more loads do not get smaller parts
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid


def sharers(environment: Mapping[str, str] | None = None) -> int:
    """Count the loads that share this machine: the calling load, which is not announced yet, and its neighbours.

    Args:
        environment: Variables; None for those of this process.
    """
    return max(local_ranks(environment), _running_loads())


def local_ranks(environment: Mapping[str, str] | None = None) -> int:
    """Count the processes on this machine that were started together, as far as they say so; 1 where none do.

    Args:
        environment: None for this process's.
    """
    return max(_launched_ranks(environment), _process_group_ranks())


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
    torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
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
