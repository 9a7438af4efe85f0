"""Finds the shards that an earlier save wrote before it ended early, so that they are not sent again.

Guarantees: a shard is kept only if it has exactly the bytes that would be sent. The digest of its storage shows this,
or the shard is read back. A shard that an index names belongs to a complete checkpoint, and is never kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamer import _native
from streamer._save.parts import ShardBytes
from streamer.core.checkpoint.file_bytes import FileBytes, has_content
from streamer.core.checkpoint.sharding import shard_names
from streamer.core.options.settings import Settings
from streamer.core.store.sources import ObjectInfo, Store

__all__ = ["Resumed"]

MOST_NAMES = 4  # most names with a save id that are tried; each older checkpoint of the same tensors may have one


@dataclass(frozen=True)
class Resumed:
    """The shards to save, for a comparison with existing files.

    Attributes:
        store: Where they are.
        settings: How they are read.
        shards: The shards to be saved, two or more.
    """

    store: Store
    settings: Settings
    shards: Sequence[ShardBytes]

    def names(self, existing: Mapping[str, ObjectInfo], in_use: Collection[str]) -> list[str] | None:
        """Name the shards as the save that ended early did.

        Returns:
            Names of all shards; the files that exist under these names have the content to be saved. None if the save
            that ended early left no such files.
        """
        for names in self._possible_names():
            there = [name for name in names if name in existing]
            if not any(name in in_use for name in there) and self._are_equal(names, existing):
                return names
        return None

    def _possible_names(self) -> Iterator[list[str]]:
        count = len(self.shards)
        yield shard_names(count, has_index=True)
        value = 0
        for shard in self.shards:
            value = _native.crc("crc32c", shard.header, value)
        for more in range(MOST_NAMES):
            yield shard_names(count, has_index=True, save_id=f"{(value + more) % (1 << 32):08x}")

    def _are_equal(self, names: list[str], existing: Mapping[str, ObjectInfo]) -> bool:
        found = [(existing[name], shard) for name, shard in zip(names, self.shards, strict=True) if name in existing]
        if any(info.size_bytes != shard.size_bytes for info, shard in found):
            return False
        return all(has_content(FileBytes(self.store, info, self.settings), shard.digested) for info, shard in found)
