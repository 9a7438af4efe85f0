"""How much of a file is already in the page cache: an estimate from samples.

Reading from the cache, more threads than processors only cost switches and cache misses; reading from a device, they
keep its queue busy. Only a look at the cache tells which it will be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import random, sample

from streamer import _native

__all__ = ["cached_fraction", "cached_fractions"]

# Of so many files that all are there, or none, at most one in twenty is likely to be otherwise. To look at a thousand
# takes 10 ms, in which nothing is read.
FILES_LOOKED_AT = 64
SAMPLES = 16  # per file; all of them take about 50 microseconds where the pages are there
SAMPLES_OF_ALL = 1024


def cached_fractions(sizes: Mapping[str, int]) -> dict[str, float]:
    """Look at several files; of very many only at some, unless these differ.

    Args:
        sizes: By path, in bytes.

    Returns:
        By path, as `cached_fraction`.
    """
    some = sample(list(sizes), FILES_LOOKED_AT) if len(sizes) > FILES_LOOKED_AT else sizes
    found = {path: cached_fraction(path, sizes[path], len(sizes)) for path in some}
    distinct = {*found.values()}
    if len(distinct) == 1 and distinct <= {0.0, 1.0}:
        return dict.fromkeys(sizes, distinct.pop())
    others = (path for path in sizes if path not in found)
    return found | {path: cached_fraction(path, sizes[path], len(sizes)) for path in others}


def cached_fraction(path: str, size_bytes: int, files: int = 1) -> float:
    """Sample a few pages spread over a file, at other places each time.

    Args:
        path: Of the file.
        size_bytes: Its size.
        files: How many are looked at, each with fewer samples where these are very many.

    Sampling makes the kernel read those pages, so a second time at the same places would find a warm file.

    Returns:
        The fraction of them that is in memory, from 0 to 1; `native/io/page_cache.h` says how that is known.
    """
    samples = min(SAMPLES, max(1, SAMPLES_OF_ALL // files))
    step = size_bytes / samples
    try:
        # O_NONBLOCK: whatever this path has become, opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0.0  # the engine will raise the error
    try:
        # Without it the kernel reads megabytes behind each page that is not there.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        cached = sum(_native.is_cached(descriptor, int(step * (sample + random()))) for sample in range(samples))  # noqa: S311
    except OSError:  # a pipe takes no advice
        return 0.0
    finally:
        os.close(descriptor)
    return cached / samples
