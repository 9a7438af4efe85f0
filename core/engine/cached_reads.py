"""Finds the items of a plan that a cache of this machine holds, and makes the plan that reads them from the cache.

Guarantees: an item is read from the cache only if the cache records all its bytes with a CRC32C. The engine compares
the CRC32C before the item is handed out. If the cached bytes are damaged, the same session reads the item from its
object.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streamer.core.engine.plan import ReadPlan, plan_reads
from streamer.core.store.sources import FileSource, HttpSource

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.engine.native_session import SourceObject

__all__ = ["CachedObject", "CachedReads", "with_cache"]


class CachedObject:
    """An object's place in a cache.

    Attributes:
        entry: The engine's record of the cached bytes.
        folder: The folder of the object in the cache.
        is_trusted: Whether items are read from the cache; False after a digest of the storage mismatched.
        is_written: Whether bytes that are read from the object are added to the cache.
        may_wait: Whether readers wait until their bytes are written to the cache, so that none is left out.
    """

    def __init__(self, entry: _native.CacheEntry, folder: str, lock: object) -> None:
        self.entry, self.folder, self.may_wait = entry, folder, False
        self.is_trusted = self.is_written = True
        self._lock = lock  # held as long as a session may read or write the files

    @property
    def data_path(self) -> str:
        """The file with the cached bytes, at the same offsets as in the object."""
        return os.path.join(self.folder, "data")

    def distrust(self, end_bytes: int) -> None:
        """Stop reading from the cache, and forget the cached bytes before offset `end_bytes`."""
        self.is_trusted = False
        self.entry.forget(0, end_bytes)


@dataclass(frozen=True)
class CachedReads:
    """The result of `with_cache`.

    Attributes:
        plan: Reads cached items from the files of the cache.
        objects: The objects of a load, followed by these files.
        table: Rows of an item's number, the number of its object, and its CRC32C; None if nothing is cached.
    """

    plan: ReadPlan
    objects: Sequence[SourceObject]
    table: array[int] | None = None


def with_cache(objects: Sequence[SourceObject], plan: ReadPlan, coalesce_gap_bytes: int) -> CachedReads:
    """Look up the items of a plan."""
    trusted = [number for number, each in enumerate(objects) if _is_read_from_cache(each)]
    if not trusted:
        return CachedReads(plan, objects)
    files = [_file_of(objects[number]) for number in trusted]
    file_of = {number: len(objects) + position for position, number in enumerate(trusted)}
    entries = {number: each.cache.entry for number in trusted if (each := objects[number]).cache is not None}
    for entry in entries.values():
        entry.refresh()
    table, rows = array("q"), []
    for item, (source, begin, end, target, device) in enumerate(plan.item_rows()):
        crc = entries[source].checksum(begin, end) if source in entries and begin < end else None
        if crc is not None:
            table.extend((item, source, crc))
        rows.append((source if crc is None else file_of[source], begin, end, target, device))
    if not table:
        return CachedReads(plan, objects)
    return CachedReads(plan_reads(rows, coalesce_gap_bytes), [*objects, *files], table)


def _is_read_from_cache(source_object: SourceObject) -> bool:
    """Say whether an object is read from its cache; not if the checksum of each answer is to be compared."""
    source = source_object.source
    needs_answers = source_object.compares_answers and isinstance(source, HttpSource) and source.answer_checksum
    return source_object.cache is not None and source_object.cache.is_trusted and not needs_answers


def _file_of(source_object: SourceObject) -> SourceObject:
    assert source_object.cache is not None
    source = FileSource(source_object.cache.data_path)
    return replace(source_object, source=source, version="", compares_answers=False, cache=None, is_of_cache=True)
