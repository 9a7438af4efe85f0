"""Which items of a plan a cache of this machine holds, and the plan that reads them from there.

Guarantees: an item is read from the cache only if all its bytes are recorded there, with a CRC32C that the engine
compares before the item is handed out; a damaged one is read from its object, within the same session.
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
        entry: What the engine knows of it.
        folder: Its folder.
        is_trusted: Whether items are read from it; not after a digest of the storage's mismatched.
        is_written: Whether what is read of the object is added to it.
        may_wait: Whether readers wait until what they read is written, so that nothing is left out.
    """

    def __init__(self, entry: _native.CacheEntry, folder: str, lock: object) -> None:
        self.entry, self.folder, self.may_wait = entry, folder, False
        self.is_trusted = self.is_written = True
        self._lock = lock  # held as long as somebody may read or write the files

    @property
    def data_path(self) -> str:
        """The file with its bytes, each where it is in the object."""
        return os.path.join(self.folder, "data")

    def distrust(self, end_bytes: int) -> None:
        """Read nothing from the cache any more, and forget what it has of the object's first `end_bytes`."""
        self.is_trusted = False
        self.entry.forget(0, end_bytes)


@dataclass(frozen=True)
class CachedReads:
    """What `with_cache` gives.

    Attributes:
        plan: Reads cached items from the files of the cache.
        objects: The objects of a load, and behind them these files.
        table: Rows of item, number of its object, CRC32C; None if nothing is cached.
    """

    plan: ReadPlan
    objects: Sequence[SourceObject]
    table: array[int] | None = None


def with_cache(objects: Sequence[SourceObject], plan: ReadPlan, coalesce_gap_bytes: int) -> CachedReads:
    """Look up the items of a plan.

    Args:
        objects: In the order the plan numbers them.
        plan: What to read.
        coalesce_gap_bytes: As for `plan_reads`.
    """
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
    """Bytes that each answer's checksum is to verify must come in answers."""
    source = source_object.source
    needs_answers = source_object.compares_answers and isinstance(source, HttpSource) and source.answer_checksum
    return source_object.cache is not None and source_object.cache.is_trusted and not needs_answers


def _file_of(source_object: SourceObject) -> SourceObject:
    assert source_object.cache is not None
    source = FileSource(source_object.cache.data_path)
    return replace(source_object, source=source, version="", compares_answers=False, cache=None, is_of_cache=True)
