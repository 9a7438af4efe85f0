"""Measure the limits of a machine: copies from pinned memory to its device, and from the page cache to memory.

Guarantees: no code of this project is used. Rates are in 1e9 bytes per second. The best of several tries counts,
because these are limits.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["page_cache_gb_per_s", "pinned_copy_gb_per_s"]

COPY_BYTES = 256 << 20  # long enough that starting a copy costs nothing
BLOCK_BYTES = 8 << 20
TRIES = 5


def pinned_copy_gb_per_s(device: str) -> float:
    """Time copies from torch's own pinned memory, one after the other on one stream, with events."""
    import torch

    if not device.startswith("cuda"):
        return 0.0
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True).fill_(1)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    best_ms = float("inf")
    with torch.cuda.device(device):
        for _ in range(TRIES):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            for _ in range(4):
                target.copy_(source, non_blocking=True)
            ended.record()
            ended.synchronize()
            best_ms = min(best_ms, began.elapsed_time(ended) / 4)
    return COPY_BYTES / best_ms / 1e6


def page_cache_gb_per_s(paths: list[Path]) -> float:
    """Time reads of whole warm files by several threads into buffers that are reused, so that no page fault counts."""
    sizes = [path.stat().st_size for path in paths]
    blocks = [(path, at) for path, size in zip(paths, sizes, strict=True) for at in range(0, size, BLOCK_BYTES)]
    processors = len(os.sched_getaffinity(0))
    best = 0.0
    for threads in sorted({min(4, processors), processors, min(16, 2 * processors)}):
        for _ in range(2):
            best = max(best, sum(sizes) / _seconds(blocks, threads) / 1e9)
    return best


def _seconds(blocks: list[tuple[Path, int]], threads: int) -> float:
    descriptors = {path: os.open(path, os.O_RDONLY) for path, _ in blocks}
    shares = [blocks[index::threads] for index in range(threads)]
    buffers: list[Any] = [bytearray(BLOCK_BYTES) for _ in range(threads)]

    def read(index: int) -> None:
        for path, at in shares[index]:
            os.preadv(descriptors[path], [buffers[index]], at)

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))  # threads and buffers are touched
            started = time.perf_counter()
            list(pool.map(read, range(threads)))
            return time.perf_counter() - started
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
