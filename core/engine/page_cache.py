"""Estimates from samples which part of a file is already in the page cache.

If a file is in the page cache, more threads than processors only cost context switches and cache misses. If the file is
on a disk, more threads keep the disk's queue busy. The number of threads is chosen by this estimate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import random, sample

from streamer import _native

__all__ = ["cached_fraction", "cached_fractions"]

# If 64 of the files are all cached, or all not cached, probably at most one in twenty of the others differs. Checking a
# thousand files takes 10 ms, and nothing is read meanwhile.
FILES_LOOKED_AT = 64
SAMPLES = 16  # per file; they take about 50 microseconds if the pages are cached
SAMPLES_OF_ALL = 1024


def cached_fractions(sizes: Mapping[str, int]) -> dict[str, float]:
    """Estimate the cached part of several files. If there are very many, check only some, unless these differ.

    Args:
        sizes: Sizes in bytes, by path.

    Returns:
        The results of `cached_fraction`, by path.
    """
    some = sample(list(sizes), FILES_LOOKED_AT) if len(sizes) > FILES_LOOKED_AT else sizes
    found = {path: cached_fraction(path, sizes[path], len(sizes)) for path in some}
    distinct = {*found.values()}
    if len(distinct) == 1 and distinct <= {0.0, 1.0}:
        return dict.fromkeys(sizes, distinct.pop())
    others = (path for path in sizes if path not in found)
    return found | {path: cached_fraction(path, sizes[path], len(sizes)) for path in others}


def cached_fraction(path: str, size_bytes: int, files: int = 1) -> float:
    """Sample a few pages of a file, at other places in each call.

    Args:
        path: Path of the file.
        size_bytes: Size of the file.
        files: Number of files that are checked; if there are very many, each gets fewer samples.

    Sampling makes the kernel read the sampled pages, so a second call at the same places would find them cached.

    Returns:
        The fraction of the pages that is in memory, from 0 to 1; see `native/io/page_cache.h`.
    """
    samples = min(SAMPLES, max(1, SAMPLES_OF_ALL // files))
    step = size_bytes / samples
    try:
        # O_NONBLOCK: if the path is a FIFO by now, opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0.0  # the engine will raise the error
    try:
        # Otherwise the kernel reads megabytes after each sampled page that is not cached.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        cached = sum(_native.is_cached(descriptor, int(step * (sample + random()))) for sample in range(samples))  # noqa: S311
    except OSError:  # for example, posix_fadvise refuses a pipe
        return 0.0
    finally:
        os.close(descriptor)
    return cached / samples
