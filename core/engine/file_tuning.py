"""How mounted files are read: by how many threads, and which of them past the page cache.

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

# Beyond this part of a file, the rest is brought into the page cache with it, for the next load.
MOSTLY_CACHED = 0.9
# Some ten of them copy from the page cache as fast as a socket's memory goes; more of them wait for each other, and a
# machine with eight devices runs eight loads.
MOST_WARM_FILE_THREADS = 32
LEAST_BYTES_TO_LOOK = 32 << 20  # a twentieth of a second from a disk
LEAST_BYTES_OF_FILE_TO_LOOK = 512 << 10  # more than of a header
# Starting the library costs 0.1 s without a device, and was never measured with one: little beside reading so much.
LEAST_BYTES_FOR_GPUDIRECT = 4 << 30
# To a device, a copier and the consumer need processors of their own. With as many readers as processors, the device
# waits for them, and the same load takes up to three times as long (decision 0021).
PROCESSORS_BESIDE_READERS = 4
# On fewer processors than that leaves, each still copies from the page cache slower than a bus takes.
LEAST_READERS_OF_MANY = 5
MOST_READERS_TO_A_DEVICE = 16
COLD_FILE_THREADS = 16  # reads a disk has to choose from; NVMe gains little beyond
# Each read waits for a network. The kernel splits a block into reads of the mount's rsize and keeps at most some
# 15 MiB of them ahead by itself; more files and blocks at a time keep its connection filled over milliseconds.
REMOTE_FILE_THREADS = 32
LEAST_COLD_PART = 1 / 4  # of all bytes, for which a disk gets more threads than the page cache needs


@dataclass(frozen=True)
class FileReading:
    """What `choose_file_reading` chose.

    Attributes:
        threads: For all files together.
        direct_paths: Files to be read with ``O_DIRECT``, where their file system can.
        partly_cached_paths: Of these, the ones of which the page cache holds a part, which is read from there.
        is_shared: Whether these are read through it while other readers of this machine have them open, too.
        gpudirect: Whether these go straight to CUDA devices; None: where that is really without a copy.
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
    """Choose for the files among `sources`, each with its size in bytes, of which so many are read in so many blocks.

    `devices` is the number of CUDA devices that the engine copies to, `sharers` that of the loads of this machine.

    Few threads for files in the page cache, many for those on a device, most for those behind a network. What is not in
    the page cache is read past it, unless its file system needs it, or so little is wanted or missing that it may well
    be wanted again. Of ranks that read a file at the same time, one would be faster past it, and all together are not.
    """
    files = {source.path: (source, size_bytes) for source, size_bytes in sources if isinstance(source, FileSource)}
    is_remote = any(source.is_remote for source, _ in files.values())
    is_all_set = settings.file_threads is not None and settings.direct_io is not None
    # A look at the page cache would ask a server for attributes; headers and a few tensors are not worth one.
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
    reads_alone = settings.direct_io is not None  # as the user wants it, whoever else reads
    return FileReading(min(blocks, threads), frozenset(direct), frozenset(partly_cached), not reads_alone, gpudirect)


def _threads(is_remote: bool, is_cold: bool, devices: int, sharers: int) -> int:
    if is_remote:
        return REMOTE_FILE_THREADS
    warm = _warm_threads(devices)
    alone = max(COLD_FILE_THREADS, warm) if is_cold else warm
    return math.ceil(alone / sharers)


def _warm_threads(devices: int) -> int:
    # One more than processors: one always waits for a fault or a lock.
    most = min(processors() + 1, MOST_WARM_FILE_THREADS)
    if devices == 0:
        return most
    beside = max(processors() - PROCESSORS_BESIDE_READERS, LEAST_READERS_OF_MANY)
    return min(most, beside, MOST_READERS_TO_A_DEVICE * devices)
