"""How much pinned memory a load uses for each CUDA device.

Files fill a slot within a millisecond, so a few slots beside those that the readers fill keep a bus busy; a larger ring
is only pinned, filled and emptied through memory instead of the processor's cache (decision 0021). A request over a
network fills its slot in a tenth of a second, and hundreds are in flight: that ring is large.
"""

from __future__ import annotations

from streamer.core.options.machine import memory_bytes
from streamer.core.options.options import GIB, MIB
from streamer.core.options.settings import Settings

__all__ = ["choose_pinned_bytes"]

# Both machines that were measured are within a tenth of their best from 192 to 256 MiB, and lose below readers + 4.
FILE_RING_BYTES = 256 * MIB
LEAST_FILE_RING_BYTES = 64 * MIB
SLOTS_BESIDE_READERS = 4
# A store's connection brings 90 MB/s, so that 8 MiB are in a slot for a tenth of a second: enough for 2.9 and 23 GB/s.
LEAST_NETWORK_RING_BYTES = 256 * MIB
MOST_NETWORK_RING_BYTES = 2 * GIB


def choose_pinned_bytes(
    settings: Settings, *, reads_only_files: bool, file_threads: int, devices: int, sharers: int = 1
) -> int:
    """Return the bytes for each of `devices`, on a machine that `sharers` loads share; an option of the user counts.

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
    slots = file_threads + SLOTS_BESIDE_READERS  # any device may be the one that all readers read for
    return max(FILE_RING_BYTES // parts, LEAST_FILE_RING_BYTES, slots * settings.file_block_bytes)
