"""The interface by which one read compares its bytes with digests, and reports the result.

Guarantees: an object counts as verified only if a digest of all its bytes, or of all its tensors that were read, was
compared and equal. An object that was not compared is reported with the reason. Without ``verify`` nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.errors import ChecksumError
from streamer.core.log import OwnLogger
from streamer.core.quoting import printable
from streamer.core.store.digests import NoDigest, ObjectDigest

if TYPE_CHECKING:
    from streamer import _native
    from streamer.core.checkpoint.catalog import ShardTensor
    from streamer.core.format.manifest import Manifest

__all__ = ["Expected", "ManifestOfShard", "Pieces", "Verification", "Watched", "log_unverified"]

_log = OwnLogger()


class ManifestOfShard(NamedTuple):
    """A manifest, and the name of one shard in it."""

    manifest: Manifest
    uri: str
    shard: str


# The expected digest of one shard, or the reason why there is none.
Expected: TypeAlias = ObjectDigest | NoDigest | ManifestOfShard

# (first byte in the object, size in bytes, checksum) of the consecutive pieces of an item.
Pieces: TypeAlias = list[tuple[int, int, int]]


class Verification(Protocol):
    """Compares the items of one read of a checkpoint with digests."""

    @property
    def digests(self) -> _native.DigestPlan | None:
        """The digests that the engine shall compute, or None."""

    @property
    def needs_order(self) -> bool:
        """Whether items must be taken in the order of the plan."""

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Add an item before it is handed out.

        Args:
            item: Its number in the plan.
            data: Its bytes; None if they are not in host memory.
            pieces: Returns the checksums of its pieces.

        Raises:
            ChecksumError: the item completes an object whose digest mismatches the expected one.
        """

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return what was verified so far, object by object.

        Args:
            compares_answers: Whether every answer for a shard so far was compared with its checksum.
        """


class Watched:
    """A `Verification` that hands each mismatch to a function, which raises the error or lets the read go on.

    Args:
        verification: What compares.
        wanted: The tensors of the read.
        on_mismatch: Called with the number of the shard, and the error.
    """

    def __init__(
        self,
        verification: Verification,
        wanted: Sequence[ShardTensor],
        on_mismatch: Callable[[int, ChecksumError], None],
    ) -> None:
        self._verification, self._wanted, self._on_mismatch = verification, wanted, on_mismatch

    @property
    def digests(self) -> _native.DigestPlan | None:
        """As of `Verification`."""
        return self._verification.digests

    @property
    def needs_order(self) -> bool:
        """As of `Verification`."""
        return self._verification.needs_order

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """As of `Verification`, but for mismatches."""
        try:
            self._verification.take(item, data, pieces)
        except ChecksumError as error:
            self._on_mismatch(self._wanted[item].shard, error)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """As of `Verification`."""
        return self._verification.checks(compares_answers)


def log_unverified(uri: str, checks: Sequence[ObjectCheck]) -> None:
    """Log which objects were not verified; warn if nothing at all was compared."""
    unverified = [check for check in checks if check.verified_by is None]
    for check in unverified:
        _log.info("%s: not verified, %s", printable(check.uri), printable(check.remark or ""))
    if unverified and len(unverified) == len(checks):
        _warn_once(uri, unverified[0].remark or "")


@lru_cache(maxsize=1024)  # an open checkpoint reads many times
def _warn_once(uri: str, reason: str) -> None:
    _log.warning(
        "%s: verify compared nothing: %s. Safetensors files are compared on any storage with a manifest: "
        'streamer.write_manifest, then verify="manifest"',
        printable(uri),
        printable(reason),
    )
