"""Measures a load in the process of a contestant, and computes digests that show that everything was loaded.

Guarantees: figures cover exactly the ``with Measurement()`` block. The digest covers sampled bytes of every tensor, its
name and its size, so a skipped, swapped or truncated tensor changes the digest. Linux only.
"""

from __future__ import annotations

import mmap
import os
import resource
import statistics
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_STRIDE = 65521  # equals kSampleStride in measured.h: a prime near 64 KiB, smaller than any block
MASK = (1 << 64) - 1
REPORTED_AFTER_S = 2.5  # as in measured.h: the kernel reports free pages 2 s after the first was freed
WORTH_WAITING_BYTES = 256 << 20


def digest(flat: np.ndarray[Any, Any]) -> int:
    """Sum one sampled byte in every 64 KiB, weighted by position."""
    sample = flat[::SAMPLE_STRIDE].astype(np.uint64)
    return int((sample * np.arange(1, len(sample) + 1, dtype=np.uint64)).sum())


def tensor_digest(name: str, tensor: Any) -> tuple[int, int]:
    """Return (bytes, digest) of a torch tensor; the digests of a whole checkpoint are added up modulo 2**64."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return len(flat), named_digest(name, flat)


def named_digest(name: str, flat: np.ndarray[Any, Any]) -> int:
    """Bind the digest of a tensor's bytes to its name and size."""
    return (zlib.crc32(f"{name}:{len(flat)}".encode()) * (digest(flat) + 1)) & MASK


def touch_and_free(size_bytes: int, *, huge_pages: bool) -> None:
    """Map, touch and free memory of the kind that the loader will use, so that the host backs it when the load starts.

    Each child does this itself, directly before its measured section, and not the parent once per round. Machines with
    free-page reporting return freed memory to the host two seconds after the first page was freed. Therefore a child
    first waits until this is over. Without the wait, a child that starts at once would get the memory of the previous
    process, and a child that imports torch first would not. The child also holds its memory for this time; otherwise
    the host would take it back in the middle of the load (1.3 to 2.7 s instead of 0.25 s).

    The kernel takes huge and small pages from different lists, so the kind of pages matters. Measured here: the first
    GiB of huge pages took 0.2 s after huge pages were touched, and 1.4 s after small pages were touched. The first GiB
    of small pages took 0.4 to 0.8 s after small pages were touched, and 0.5 to 2.1 s after huge ones. So the host backs
    the memory that each loader uses, and no figure includes the host.
    """
    if size_bytes <= 0:
        return
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        _let_host_take_free_pages(size_bytes)
        memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
        np.frombuffer(memory, dtype=np.uint8)[::4096] = 1
        _let_host_take_free_pages(size_bytes)


def _let_host_take_free_pages(size_bytes: int) -> None:
    if size_bytes >= WORTH_WAITING_BYTES and Path("/sys/module/page_reporting").exists():
        time.sleep(REPORTED_AFTER_S)


def _proc_field(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def _cpu_seconds() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _faults() -> tuple[int, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt


def _switches() -> int:
    """Count how often a thread gave up its processor because it had to wait."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


class Measurement:
    """Measure a block: seconds, CPU seconds, peak RSS above the RSS before it, disk bytes, page faults, switches."""

    def __enter__(self) -> Measurement:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak of imports and of touch_and_free
        except OSError:
            self.peak_is_upper_bound = True
        else:
            self.peak_is_upper_bound = False
        self._rss = _proc_field("/proc/self/status", "VmRSS:") * 1024
        self._disk = _proc_field("/proc/self/io", "read_bytes:")
        self._faults, self._switches = _faults(), _switches()
        self._cpu = _cpu_seconds()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cpu_seconds = _cpu_seconds() - self._cpu
        self.peak_rss_bytes = _proc_field("/proc/self/status", "VmHWM:") * 1024 - self._rss
        self.disk_bytes = _proc_field("/proc/self/io", "read_bytes:") - self._disk
        minor, major = _faults()
        self.switches = _switches() - self._switches
        self.minor_faults, self.major_faults = minor - self._faults[0], major - self._faults[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name; the raw readers print the same names."""
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}


def summary_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Describe the runs of one contestant in a line.

    Args:
        runs: The result of `Measurement.to_dict` of each run, with its ``bytes``.
    """
    seconds, gigabytes = [run["seconds"] for run in runs], runs[0]["bytes"] / 1e9
    median = statistics.median(seconds)
    cpu = statistics.median(run["cpu_seconds"] for run in runs) / gigabytes
    peak = statistics.median(run["peak_rss_bytes"] for run in runs) / (1 << 20)
    return (
        f"median {median:6.3f} s  ({min(seconds):.3f} to {max(seconds):.3f})"
        f"  {gigabytes / median:5.2f} GB/s  {cpu:5.2f} CPU-s/GB  peak {peak:5.0f} MiB"
    )


def drop_from_page_cache(paths: Iterable[Path]) -> None:
    """Drop these files from the page cache, so that reads are cold; other files stay. Dirty pages are written first."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bring_into_page_cache(paths: Iterable[Path], share: float = 1.0) -> None:
    """Read these files, or the first `share` of each, into the page cache, so that reads are warm."""
    buffer = memoryview(bytearray(8 << 20))
    for path in paths:
        left = int(path.stat().st_size * share)
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no byte is read ahead
            while left > 0 and (count := file.readinto(buffer[:left])):
                left -= count
