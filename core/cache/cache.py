"""The cache of one load: which of its objects have a place in the folder that the settings name.

A load without such a folder imports nothing of it: that takes 10 ms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from streamer.core.engine.native_session import SourceObject
from streamer.core.options.settings import Settings


class Cache:
    """The places of one load's objects.

    Attributes:
        objects: The objects, with their places.
    """

    def __init__(self, objects: Sequence[SourceObject] = (), remarks: Sequence[str] = ()) -> None:
        self.objects = list(objects)
        self.peers: Any = None  # of `streamer.core.peers.joining`, or None
        self._remarks = list(remarks)

    def remarks(self) -> list[str]:
        """Say what was not cached, and why, for the report of a load."""
        failures = {each.cache.entry.failure for each in self.objects if each.cache is not None} - {0}
        stopped = [f"the cache takes no more: {os.strerror(number)}" for number in sorted(failures)]
        return [*self._remarks, *stopped]

    def peer_bytes(self) -> dict[str, int]:
        """Return the bytes that each peer gave, by its address."""
        return {} if self.peers is None else self.peers.received()

    def leave_peers(self) -> None:
        """Read from no peer: for loads that cannot compare what a peer gave before they use it."""
        for each in self.objects:
            if each.cache is not None:
                each.cache.peers = None

    def distrust(self, shard: int) -> None:
        """Forget the cached bytes of an object: they differ from the bytes in its storage."""
        if shard < len(self.objects) and (cached := self.objects[shard].cache) is not None:
            cached.distrust(self.objects[shard].size_bytes)

    def distrust_headers(self, header_bytes: int) -> bool:
        """Forget the headers; say whether any can have come from the cache."""
        cached = [each.cache for each in self.objects if each.cache is not None and each.cache.is_trusted]
        for each in cached:
            each.distrust(header_bytes)
        return bool(cached)


def open_cache(objects: Sequence[SourceObject], settings: Settings) -> Cache:
    """Return objects their places in the cache that the settings name, if they name a cache."""
    if not settings.cache_dir:
        return Cache(objects)
    from streamer.core.cache.opening import placed_objects  # noqa: PLC0415 (see the module's docstring)

    return Cache(*placed_objects(objects, os.fspath(settings.cache_dir), settings.cache_bytes))
