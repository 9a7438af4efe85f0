"""Makes room in a cache: the objects that were not used for the longest time are removed first, each as a whole.

An object that is in use counts with all its bytes, because the load that uses it may still write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from streamer._cache.folder import CacheFolder, Held
from streamer._cache.identity import Identity

__all__ = ["Room", "make_room"]


@dataclass(frozen=True)
class Room:
    """Which objects may be written to the cache.

    Attributes:
        count: Number of new objects that fit, from the first on.
        is_within_limit: Whether more bytes of the objects that the cache holds already may be written.
    """

    count: int
    is_within_limit: bool


def make_room(folder: CacheFolder, new: Sequence[Identity], most_bytes: int | None) -> Room:
    """Remove objects until new ones fit, or all that is left is in use.

    Args:
        folder: The folder of the cache.
        new: Objects that are not in the cache.
        most_bytes: Limit for all objects together; None for half of the sum of their bytes and the disk's free bytes.

    Raises:
        OSError: the folder cannot be read.
    """
    with folder.making_room():
        held = folder.held()
        disk_bytes, free = sum(each.disk_bytes for each in held), folder.free_bytes()
        limit = (disk_bytes + free) // 2 if most_bytes is None else min(most_bytes, disk_bytes + free)
        charges = {each.key: _charge(folder, each) for each in held}
        count = _count_of(new, limit)
        _remove(folder, held, charges, limit - sum(each.size_bytes for each in new[:count]))
        count = min(count, _count_of(new, limit - sum(charges.values())))
        return Room(count, sum(charges.values()) <= limit)


def _charge(folder: CacheFolder, held: Held) -> int:
    is_growing = held.identity is not None and folder.is_used(held.key)
    return max(held.disk_bytes, held.identity.size_bytes) if is_growing and held.identity else held.disk_bytes


def _count_of(new: Sequence[Identity], limit: int) -> int:
    """Count the new objects that fit, from the first on."""
    total = 0
    for count, each in enumerate(new):
        total += each.size_bytes
        if total > limit:
            return count
    return len(new)


def _remove(folder: CacheFolder, held: Sequence[Held], charges: dict[str, int], limit: int) -> None:
    for each in held:
        if sum(charges.values()) <= limit:
            return
        with suppress(OSError):  # the object stays, and counts
            if folder.remove(each.key):
                del charges[each.key]
