"""Chooses how mounted files are read: by how many threads, and which files bypass the page cache.

Guarantees: no request is made to a file server; options that the user set are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from streamer.core.engine.page_cache import cached_fractions
from streamer.core.options.machine import processors
from streamer.core.options.settings import Settings
from streamer.core.store.sources import FileSource, Source

__all__ = ["FileReading", "choose_file_reading"]

# If a larger part of a file is in the page cache, the rest is read through the page cache, too, for the next load.
MOSTLY_CACHED = 0.9
# About ten threads copy from the page cache as fast as the memory of one socket allows. More threads wait for each
# other, and a machine with eight devices runs eight loads.
MOST_WARM_FILE_THREADS = 32
LEAST_BYTES_TO_LOOK = 32 << 20  # a disk reads them in a twentieth of a second
LEAST_BYTES_OF_FILE_TO_LOOK = 512 << 10  # more than a header has
# The library takes 0.1 s to start without a device (with a device this was not measured): little beside such a load.
LEAST_BYTES_FOR_GPUDIRECT = 4 << 30
# In a load to a device, the copier and the consumer need processors of their own. With as many readers as processors,
# the device waits, and the same load takes up to three times as long (decision 0021).
PROCESSORS_BESIDE_READERS = 4
# At least this many readers, even on few processors: fewer readers copy from the page cache more slowly than a bus.
LEAST_READERS_OF_MANY = 5
MOST_READERS_TO_A_DEVICE = 16
COLD_FILE_THREADS = 16  # the disk can choose among this many reads; NVMe gains little from more
# Each read waits for a network. The kernel splits a block into reads of the mount's rsize, and reads at most about 15
# MiB ahead. More files and blocks at the same time keep the connection busy while answers take milliseconds.
REMOTE_FILE_THREADS = 32
LEAST_COLD_PART = 1 / 4  # of all bytes; if more are on the disk, COLD_FILE_THREADS are used


@dataclass(frozen=True)
class FileReading:
    """The result of `choose_file_reading`.

    Attributes:
        threads: Number of threads for all files together.
        direct_paths: Files to read with ``O_DIRECT``, if their file system supports it.
        partly_cached_paths: Files of `direct_paths` that are partly in the page cache; this part is read from it.
        is_shared: Whether files of `direct_paths` are read through the page cache while other readers of this machine
            have them open.
        gpudirect: Whether files of `direct_paths` are read straight to CUDA devices. None: only if NVIDIA's library can
            read without a copy of its own.
    """

    threads: int
    direct_paths: frozenset[str] = frozenset()
    partly_cached_paths: frozenset[str] = frozenset()
    is_shared: bool = True
    gpudirect: bool | None = False


def choose_file_reading(
    sources: Sequence[tuple[Source, int]],
    settings: Settings,
    wanted_bytes: int,
    blocks: int,
    *,
    devices: int = 0,
    sharers: int = 1,
) -> FileReading:
    """Choose how to read the files among `sources`.

    Files in the page cache get few threads, files on a disk more, files behind a network most. Bytes that are not in
    the page cache bypass it, unless the file system needs the page cache, or only a small part is wanted or missing,
    which is probably wanted again. If several ranks read a file at the same time, they share the page cache: bypassing
    it would be faster for one rank alone, but not for all together.

    Args:
        sources: The sources of a load, each with its size in bytes.
        settings: How to read; options that the user set are kept.
        wanted_bytes: Number of bytes to read from the files.
        blocks: Number of blocks of these bytes.
        devices: Number of CUDA devices that the engine copies to.
        sharers: Number of loads of this machine.
    """
    files = {source.path: (source, size_bytes) for source, size_bytes in sources if isinstance(source, FileSource)}
    is_remote = any(source.is_remote for source, _ in files.values())
    is_all_set = settings.file_threads is not None and settings.direct_io is not None
    # Checking the page cache of a remote file requests its attributes. For headers and a few tensors a check does not
    # pay.
    is_worth_it = wanted_bytes >= max(LEAST_BYTES_TO_LOOK, LEAST_BYTES_OF_FILE_TO_LOOK * len(files))
    looks = is_worth_it and not is_remote and not is_all_set
    cached = cached_fractions({path: size for path, (_, size) in files.items()}) if looks else {}
    cold_bytes = sum((1 - fraction) * files[path][1] for path, fraction in cached.items())
    is_cold = cold_bytes > LEAST_COLD_PART * sum(size for _, size in files.values())
    threads = settings.file_threads or _threads(is_remote, is_cold, devices, sharers)
    partly_cached: set[str] = set()
    if settings.direct_io is None:
        direct = {path for path, part in cached.items() if part < MOSTLY_CACHED and not files[path][0].needs_cache}
        partly_cached = {path for path in direct if cached[path] > 0}
    else:
        direct = set(files) if settings.direct_io else set()
    gpudirect = settings.gpudirect
    if gpudirect is None and wanted_bytes < LEAST_BYTES_FOR_GPUDIRECT:
        gpudirect = False
    reads_alone = settings.direct_io is not None  # the user's choice holds, even if other readers have the files open
    return FileReading(min(blocks, threads), frozenset(direct), frozenset(partly_cached), not reads_alone, gpudirect)


def _threads(is_remote: bool, is_cold: bool, devices: int, sharers: int) -> int:
    if is_remote:
        return REMOTE_FILE_THREADS
    warm = _warm_threads(devices)
    alone = max(COLD_FILE_THREADS, warm) if is_cold else warm
    return math.ceil(alone / sharers)


def _warm_threads(devices: int) -> int:
    # One thread more than processors, because one thread always waits for a page fault or a lock.
    most = min(processors() + 1, MOST_WARM_FILE_THREADS)
    if devices == 0:
        return most
    beside = max(processors() - PROCESSORS_BESIDE_READERS, LEAST_READERS_OF_MANY)
    return min(most, beside, MOST_READERS_TO_A_DEVICE * devices)
