"""Whether the bytes of a load are those that somebody once took a digest of, and what may be said about it.

Guarantees: an object counts as verified only when a digest of all its bytes, or of all its tensors that were read, was
compared and equal; whatever was not compared is told with its reason. Without ``verify`` nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streamer.core.checkpoint.manifest_lookup import ManifestOfShard
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.store.digests import NoDigest, ObjectDigest

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["Expected", "Pieces", "Verification"]

# What the bytes of one shard should be, or why nobody says.
Expected: TypeAlias = ObjectDigest | NoDigest | ManifestOfShard

# (first byte in the object, bytes, checksum) of the consecutive pieces of an item.
Pieces: TypeAlias = list[tuple[int, int, int]]


class Verification(Protocol):
    """What one read of a checkpoint compares."""

    @property
    def digests(self) -> _native.DigestPlan | None:
        """What the engine shall compute; None: nothing."""

    @property
    def needs_order(self) -> bool:
        """Whether items must be taken in the order of the plan."""

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Look at an item before it is handed out: its bytes (None: not in host memory), and its pieces' checksums.

        Raises:
            ChecksumError: with it an object is complete, and its digest another than the expected one.
        """

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Tell what was verified so far, object by object.

        Args:
            compares_answers: Whether every answer about a shard so far was compared with a checksum of it.
        """
