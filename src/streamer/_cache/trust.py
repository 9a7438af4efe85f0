"""Forgets the cached bytes of an object whose digest mismatches: the next read takes them from the storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streamer._cache.cache import Cache
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.verification import Pieces, Verification
from streamer.core.errors import ChecksumError

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["Distrusting"]


class Distrusting:
    """A `Verification` that tells the cache of a mismatch."""

    def __init__(self, verification: Verification, wanted: Sequence[ShardTensor], cache: Cache) -> None:
        self._verification, self._wanted, self._cache = verification, wanted, cache

    @property
    def digests(self) -> _native.DigestPlan | None:
        return self._verification.digests

    @property
    def needs_order(self) -> bool:
        return self._verification.needs_order

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        try:
            self._verification.take(item, data, pieces)
        except ChecksumError:
            self._cache.distrust(self._wanted[item].shard)
            raise

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        return self._verification.checks(compares_answers)
