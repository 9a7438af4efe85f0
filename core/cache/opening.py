"""Gives the objects of a load their places in the cache, and makes room for them.

Guarantees: a cache never fails a load. What cannot be cached is read as without it, with a remark in the report. Each
place is locked against removal as long as its object is read. The objects that were not used for the longest time are
removed first, each as a whole. An object that is in use counts with all its bytes, because the load that uses it may
still write them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from streamer import _native
from streamer.core.cache.folder import CacheFolder, Held, Identity, digest_of, identity_of, why_not_cached
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import CachedObject
from streamer.core.errors import StreamerError
from streamer.core.quoting import counted
from streamer.core.store.sources import NfsSource


@dataclass(frozen=True)
class Room:
    """Which objects may be written to the cache."""

    count: int  # number of new objects that fit, from the first on
    is_within_limit: bool  # whether more bytes of the objects that the cache holds already may be written


def make_room(folder: CacheFolder, new: Sequence[Identity], most_bytes: int | None) -> Room:
    """Remove objects until new ones fit, or all that is left is in use."""
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


LONGEST_END_S = 10.0  # longest time that a program waits at its exit until its cache is on the disk


def placed_objects(
    objects: Sequence[SourceObject], cache_dir: str, cache_bytes: int | None
) -> tuple[Sequence[SourceObject], list[str]]:
    """Return objects their places in a cache.

    Returns:
        The objects, those that are cached with their places; and remarks on the others.
    """
    reasons = [why_not_cached(each) for each in objects]
    remarks = _remarks_of([reason for reason in reasons if reason])
    if all(reason is not None for reason in reasons):
        return objects, remarks
    _finish_at_exit()
    try:
        folder = CacheFolder.opened(cache_dir)
        return _opened(folder, objects, reasons, cache_bytes, remarks)
    except StreamerError as error:
        return objects, [*remarks, f"nothing is cached: {error.message}"]
    except OSError as error:
        return objects, [*remarks, f"nothing is cached in {cache_dir}: {error.strerror or error}"]


def _opened(
    folder: CacheFolder,
    objects: Sequence[SourceObject],
    reasons: Sequence[str | None],
    cache_bytes: int | None,
    remarks: list[str],
) -> tuple[Sequence[SourceObject], list[str]]:
    numbered = enumerate(zip(objects, reasons, strict=True))
    salt = folder.salt()
    identities = {number: identity_of(each, salt) for number, (each, reason) in numbered if reason is None}

    def place_of(number: int) -> CachedObject:
        return _place(folder, identities[number], digest_of(objects[number]))

    there = [number for number, identity in identities.items() if folder.has(identity)]
    places = {number: place_of(number) for number in there}
    new = {number: identity for number, identity in identities.items() if number not in places}
    if new or any(place.entry.held_bytes() < identities[number].size_bytes for number, place in places.items()):
        try:
            fitting = make_room(folder, list(new.values()), cache_bytes)
            for number, _ in zip(new, range(fitting.count), strict=False):
                places[number] = place_of(number)
            for place in places.values():
                place.is_written = fitting.is_within_limit
        except OSError as error:  # objects that are already in the cache can still be read
            remarks = [*remarks, f"nothing more is cached in {folder.path}: {error.strerror or error}"]
        else:
            left_out = len(new) - fitting.count
            remarks += [f"{counted(left_out, 'shard')} not cached: no room, see cache_bytes"] if left_out else []
    placed = [_placed(each, places[number]) if number in places else each for number, each in enumerate(objects)]
    return placed, remarks


def _placed(source_object: SourceObject, place: CachedObject) -> SourceObject:
    """Add a place to an object.

    An NFS client takes a file's version when it opens the file. A read from the cache need not open the file, so the
    version that the store described counts.
    """
    is_nfs = isinstance(source_object.source, NfsSource)
    version = (is_nfs and source_object.stored_version) or source_object.version
    return replace(source_object, cache=place, version=version)


def _place(folder: CacheFolder, identity: Identity, digest: str) -> CachedObject:
    path, lock = folder.use(identity, digest)
    return CachedObject(_native.CacheEntry(os.fsencode(path), identity.size_bytes), path, lock, digest)


def _remarks_of(reasons: Sequence[str]) -> list[str]:
    return [f"{counted(reasons.count(reason), 'shard')} not cached: {reason}" for reason in dict.fromkeys(reasons)]


@lru_cache(maxsize=1)
def _finish_at_exit() -> None:
    """At the exit of the program, wait until what it has read is in the cache."""
    atexit.register(_native.finish_cache_writes, LONGEST_END_S)
