"""Chooses how much pinned memory a load uses for each CUDA device.

Reads of files fill a slot within a millisecond, so a few more slots than readers keep a bus busy. A larger ring takes
longer to pin, and does not fit into the processor's cache (decision 0021). A request over a network fills its slot in a
tenth of a second, and hundreds of requests are in flight, so this ring is large.
"""

from __future__ import annotations

from streamer.core.options.machine import memory_bytes
from streamer.core.options.options import GIB, MIB
from streamer.core.options.settings import Settings

__all__ = ["choose_pinned_bytes"]

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
