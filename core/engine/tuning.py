"""How much is done at the same time: readers of files, requests, threads of other sources, and pinned memory.

Options that the user set are kept, and no request is made to a file server.

Files: which of them bypass the page cache, and by how many threads they are read. If a file is in the page cache, more
threads than processors only cost context switches and cache misses. If it is on a disk, more threads keep the disk's
queue busy. Samples show which part is in the page cache.

Requests: a load over a network is limited by the network, by the speed of one connection, or by the speed at which one
processor decrypts and copies. If the network is the limit, a few requests are enough. The engine's loops detect the
first two limits while they read (decision 0004); here are the upper limits of the loops.

NFS without a mount, and Python: each thread waits for a server, or for a file system in Python, most of its time. A few
threads are enough for a small load, more pay off in a large one. An NFS server is not faster with more than 16
connections, and more threads in Python mostly wait for the interpreter.

Pinned memory: reads of files fill a slot within a millisecond, so a few more slots than readers keep a bus busy. A
larger ring takes longer to pin, and does not fit into the processor's cache (decision 0021). A request over a network
fills its slot in a tenth of a second, and hundreds of requests are in flight, so this ring is large.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from random import random, sample
from typing import NamedTuple

from streamer import _native
from streamer.core.options.machine import memory_bytes, processors
from streamer.core.options.options import GIB, MIB
from streamer.core.options.settings import Settings
from streamer.core.store.sources import FileSource, Source

# If 64 of the files are all cached, or all not cached, probably at most one in twenty of the others differs. Checking a
# thousand files takes 10 ms, and nothing is read meanwhile.
FILES_LOOKED_AT = 64
SAMPLES = 16  # per file; they take about 50 microseconds if the pages are cached
SAMPLES_OF_ALL = 1024


def cached_fractions(sizes: Mapping[str, int]) -> dict[str, float]:
    """Estimate the cached part of several files. If there are very many, check only some, unless these differ."""
    some = sample(list(sizes), FILES_LOOKED_AT) if len(sizes) > FILES_LOOKED_AT else sizes
    found = {path: cached_fraction(path, sizes[path], len(sizes)) for path in some}
    distinct = {*found.values()}
    if len(distinct) == 1 and distinct <= {0.0, 1.0}:
        return dict.fromkeys(sizes, distinct.pop())
    others = (path for path in sizes if path not in found)
    return found | {path: cached_fraction(path, sizes[path], len(sizes)) for path in others}


def cached_fraction(path: str, size_bytes: int, files: int = 1) -> float:
    """Sample a few pages of a file, at other places in each call.

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


class FileReading(NamedTuple):
    """The result of `choose_file_reading`."""

    threads: int  # number of threads for all files together
    direct_paths: frozenset[str] = frozenset()  # files to read with ``O_DIRECT``, if their file system supports it
    # Files of `direct_paths` that are partly in the page cache; this part is read from it
    partly_cached_paths: frozenset[str] = frozenset()
    # Whether files of `direct_paths` are read through the page cache while other readers of this machine have them open
    is_shared: bool = True
    # Whether files of `direct_paths` are read straight to CUDA devices. None: only if NVIDIA's library can read without
    # a copy of its own.
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


FEW_REACTORS = 4  # each loop opens its own connections: a small load ends before more loops pay off
# One loop decrypts about 1.2 GB/s of TLS, or receives 2-4 GB/s without TLS. So 64 loops are more than 400 Gbit/s need.
MOST_REACTORS = 64
BYTES_PER_REACTOR = 512 << 20  # about half a second of work for one loop
# At S3's 90 MB/s per connection, 64 requests bring twice as much as a thread can receive; at 20 MB/s, from another
# continent, half as much. A loop reaches this limit only while it waits, and only if more requests bring more bytes.
MOST_IN_FLIGHT = 64
# For all loops of all loads of a machine: at 50 MB/s each, they bring 50 GB/s (400 Gbit/s).
MOST_REQUESTS = 1024


class HttpReading(NamedTuple):
    """The result of `choose_http_reading`."""

    reactors: int  # number of event loops, each with its own thread
    in_flight: int  # maximum number of ranged GETs in flight in each event loop


def choose_http_reading(settings: Settings, wanted_bytes: int, blocks: int, *, sharers: int = 1) -> HttpReading:
    """Choose for a load of `wanted_bytes` in about `blocks` blocks.

    Options of the user win, but there are never more reactors than blocks. Each of the `sharers` loads on this machine
    gets an equal part of the processors and of the requests.

    Example:
        >>> from streamer.core.options.options import Options
        >>> from streamer.core.options.settings import resolve
        >>> choose_http_reading(resolve(Options(http_reactors=16)), 10**12, 10**6)
        HttpReading(reactors=16, in_flight=64)
    """
    worthwhile = max(FEW_REACTORS, wanted_bytes // BYTES_PER_REACTOR)
    own_processors = math.ceil(processors() / sharers)
    reactors = min(blocks, settings.http_reactors or min(MOST_REACTORS, own_processors, worthwhile))
    most = max(1, min(MOST_IN_FLIGHT, MOST_REQUESTS // sharers // reactors))
    return HttpReading(reactors, min(blocks, settings.http_in_flight or most))


FEW_NFS_THREADS = 4
FEW_PYTHON_THREADS = 8
MOST_THREADS = 16
BYTES_PER_THREAD = 512 << 20  # one connection transfers them in some seconds


def choose_nfs_threads(settings: Settings, wanted_bytes: int) -> int:
    """Return the number of NFS threads for a load of `wanted_bytes`; an option of the user wins.

    Example:
        >>> from streamer.core.options.settings import resolve
        >>> choose_nfs_threads(resolve(None), 10**9), choose_nfs_threads(resolve(None), 10**11)
        (4, 16)
    """
    return settings.nfs_threads or _follow(FEW_NFS_THREADS, wanted_bytes)


def choose_python_threads(settings: Settings, wanted_bytes: int) -> int:
    """Return the number of Python threads for a load of `wanted_bytes`; an option of the user wins."""
    return settings.python_threads or _follow(FEW_PYTHON_THREADS, wanted_bytes)


def _follow(few: int, wanted_bytes: int) -> int:
    return max(few, min(MOST_THREADS, wanted_bytes // BYTES_PER_THREAD))


# From 192 to 256 MiB, both measured machines reach at least 90 % of their best speed; with less than readers + 4 slots
# they are slower.
FILE_RING_BYTES = 256 * MIB
LEAST_FILE_RING_BYTES = 64 * MIB
SLOTS_BESIDE_READERS = 4
# A connection to an object store brings 90 MB/s, so 8 MiB fill a slot in a tenth of a second. The least ring is enough
# for 2.9 GB/s, the largest for 23 GB/s.
LEAST_NETWORK_RING_BYTES = 256 * MIB
MOST_NETWORK_RING_BYTES = 2 * GIB


def choose_pinned_bytes(
    settings: Settings, *, reads_only_files: bool, file_threads: int, devices: int, sharers: int = 1
) -> int:
    """Return the bytes for each of `devices` devices if `sharers` loads share the machine; an option of the user wins.

    Example:
        >>> from streamer.core.options.settings import resolve
        >>> choose_pinned_bytes(resolve(None), reads_only_files=True, file_threads=12, devices=1) >> 20
        256
    """
    if settings.pinned_bytes is not None:
        return settings.pinned_bytes
    if not reads_only_files:
        network = max(LEAST_NETWORK_RING_BYTES, min(MOST_NETWORK_RING_BYTES, memory_bytes() // 64))
        return max(LEAST_NETWORK_RING_BYTES, network // sharers)
    parts = max(1, devices) * sharers
    slots = file_threads + SLOTS_BESIDE_READERS  # all readers may read for the same device
    return max(FILE_RING_BYTES // parts, LEAST_FILE_RING_BYTES, slots * settings.file_block_bytes)
