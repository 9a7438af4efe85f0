"""How much of a file is already in the page cache: an estimate from samples.

Reading from the cache, more threads than processors only cost switches and cache misses; reading from a device, they
keep its queue busy. Only a look at the cache tells which it will be.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from random import random

__all__ = ["cached_fraction"]

SAMPLES = 16  # per file; all of them take about 50 microseconds where the pages are there
LONGEST_COPY_S = 30e-6  # of a byte from memory, call included; a disk takes 60 microseconds and more, a server longer


def cached_fraction(path: str, size_bytes: int) -> float:
    """Sample a few pages spread over a file, at other places each time.

    Sampling makes the kernel read those pages, so a second time at the same places would find a warm file.

    Returns:
        The fraction of them that is in memory, from 0 to 1.

    ``preadv2(2)`` with ``RWF_NOWAIT`` tells on most local file systems, whoever owns the file; ``mincore(2)`` calls all
    pages of a file of another user cached, ``cachestat(2)`` refuses it, and on overlayfs (the files of a container's
    image) it finds none. Where the file system does not know ``RWF_NOWAIT``, as overlayfs, a page was in memory if
    reading it took no disk and no time.
    """
    step = size_bytes / SAMPLES
    try:
        # O_NONBLOCK: whatever this path has become, opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0.0  # the engine will raise the error
    try:
        # Without it the kernel reads megabytes behind each page that is not there.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        cached = sum(_is_cached(descriptor, int(step * (sample + random()))) for sample in range(SAMPLES))  # noqa: S311
    except OSError:  # a pipe takes no advice
        return 0.0
    finally:
        os.close(descriptor)
    return cached / SAMPLES


def _is_cached(descriptor: int, offset: int) -> bool:
    """Whether a byte was in memory before: a fast disk may deliver it during the call, which then succeeds, too."""
    read_before = _blocks_read_by_this_thread()
    began_s = time.perf_counter()
    try:
        is_there = os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # EAGAIN: not in memory
            return False
        is_there = os.preadv(descriptor, [bytearray(1)], offset) == 1
        is_there = is_there and time.perf_counter() - began_s < LONGEST_COPY_S
    return is_there and _blocks_read_by_this_thread() == read_before


def _blocks_read_by_this_thread() -> int:
    """``getrusage(2)``; always 0 where the kernel keeps no account of each task's input."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
