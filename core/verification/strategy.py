"""Verification: the strategy that ``verify=`` chooses for a load, and the interface by which a read compares its bytes.

The strategy decides which digests are requested from a store before anything is read, whether headers are kept, and
what each read compares. What computes and compares is imported when a load is verified. Guarantees: an object counts as
verified only if a digest of all its bytes, or of all its tensors that were read, was compared and equal. An object that
was not compared is reported with the reason. Without ``verify`` nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.errors import ChecksumError
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.shards.shards import Expected, Shards
from streamer.core.store.sources import Store

if TYPE_CHECKING:
    from streamer import _native

_log = OwnLogger()

DIFFERS = "its digest differs"  # the remark about an object whose mismatch is an error

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
        """Add an item before it is handed out; raise `ChecksumError` if it completes an object of another digest.

        Its bytes are None if they are not in host memory; `pieces` returns the checksums of its pieces.
        """

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return what was verified so far, object by object; `compares_answers` says if every answer so far was."""


class Watched:
    """A `Verification` that hands each mismatch, by shard, to a function, which raises it or lets the read go on."""

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
    if unverified and len(unverified) == len(checks) and all(check.remark != DIFFERS for check in unverified):
        _warn_once(uri, unverified[0].remark or "")


@lru_cache(maxsize=1024)  # an open checkpoint reads many times
def _warn_once(uri: str, reason: str) -> None:
    _log.warning(
        "%s: verify compared nothing: %s. Safetensors files are compared on any storage with a manifest: "
        'streamer.write_manifest, then verify="manifest"',
        printable(uri),
        printable(reason),
    )


VerifyOption: TypeAlias = Literal["auto", "manifest", "off"] | None


class Strategy(Protocol):
    """How the bytes of one checkpoint are verified."""

    compares_objects: bool  # whole objects are compared, headers included, and each answer that has a checksum

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        """Return the expected digests of the shards of each URI; empty if nothing is compared."""

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification | None:
        """Return the verification of one read of some tensors; None if nothing is compared."""

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        """Check the headers against what is expected, before any weight byte is read."""


def strategy_of(word: str) -> Strategy | None:
    """Return the strategy for a word of `chosen_verification`; None for ``"off"``."""
    if word == "auto":
        from streamer.core.verification.by_store import ByStore  # noqa: PLC0415 (as needed)

        return ByStore()
    if word == "manifest":
        from streamer.core.verification.by_manifest import ByManifest  # noqa: PLC0415 (as needed)

        return ByManifest()
    return None
