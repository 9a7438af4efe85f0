"""Verification: the strategy that ``verify=`` chooses for a load, and the interface by which a read compares its bytes.

The strategy decides which digests are requested from a store before anything is read, whether headers are kept, and
what each read compares. What computes and compares is imported when a load is verified. Guarantees: an object counts as
verified only if a digest of all its bytes, or of all its tensors that were read, was compared and equal. An object that
was not compared is reported with the reason. Without ``verify`` nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.errors import ChecksumError, FormatError, OptionError, PluginError
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.secrets.environment import variable
from streamer.core.shards.shards import Expected, ManifestOfShard, Shards
from streamer.core.store.digests import NoDigest, ObjectDigest, doubt_of, is_sound
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import DigestingStore, ObjectInfo, Store

if TYPE_CHECKING:
    from streamer import _native

_log = OwnLogger()


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


VerifyOption: TypeAlias = Literal["auto", "manifest", "off"] | None

ENVIRONMENT = "STREAMER_VERIFY"

_NOT_OFFERED = NoDigest("its storage keeps no digest of it")


class Strategy(Protocol):
    """How the bytes of one checkpoint are verified."""

    compares_objects: bool  # whole objects are compared, headers included, and each answer that has a checksum

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        """Return the expected digests of the shards of each URI; empty if nothing is compared.

        Args:
            store: The store of the shards.
            found: The shards of each URI.
            settings: How to read a manifest.

        Raises:
            ObjectNotFoundError: there is no manifest.
            ManifestError: it is malformed.
            StorageError: and its kinds, from the storage.
        """

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification | None:
        """Return the verification of one read of some tensors; None if nothing is compared."""

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        """Check the headers against what is expected, before any weight byte is read.

        Raises:
            ManifestError: they do not fit.
        """


def strategy_of(option: VerifyOption, environment: Mapping[str, str] | None = None) -> Strategy | None:
    """Choose the strategy by the argument, else by ``STREAMER_VERIFY``, else ``"off"``, which is None.

    Example:
        >>> type(strategy_of(None, {"STREAMER_VERIFY": "manifest"})).__name__
        'ByManifest'
    """
    word = option if option is not None else variable(ENVIRONMENT, environment) or "off"
    if not isinstance(word, str) or word not in _STRATEGIES:
        name = "verify" if option is not None else ENVIRONMENT
        raise OptionError(f'{name} is "auto", "manifest" or "off", not {word!r}')
    return _STRATEGIES[word]


class ByStore:
    """``"auto"``: each object that is read whole is compared with the digest that its storage keeps, if any."""

    compares_objects = True

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        digests = iter(digests_of(store, [info for shards in found for info in shards.infos]))
        return [[*islice(digests, len(shards.infos))] for shards in found]

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification:
        from streamer.core.verification.by_store import StoreVerification  # noqa: PLC0415 (as needed)

        digests = [each for each in expected if not isinstance(each, ManifestOfShard)]
        return StoreVerification(catalog, wanted, digests)

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        pass


class ByManifest:
    """``"manifest"``: each tensor is compared with the manifest beside the checkpoint."""

    compares_objects = False

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        from streamer.core.verification.by_manifest import Manifests  # noqa: PLC0415 (as needed)

        manifests = Manifests(store, settings)  # reads each manifest once, also if many URIs share it

        def of_uri(shards: Shards) -> list[Expected]:
            if shards.format is not None:
                raise _no_manifests(shards.format.name, shards.infos[0].uri)
            return [*manifests.of_shards(shards.infos, shards.index_path, is_whole=shards.kind in ("folder", "index"))]

        return in_parallel(of_uri, found, role="digest")

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification:
        from streamer.core.verification.by_manifest import ManifestVerification  # noqa: PLC0415 (as needed)

        manifests = [each.manifest.shards[each.shard] for each in _manifests(expected)]
        return ManifestVerification(catalog, wanted, manifests)

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        from streamer.core.verification.by_manifest import check_fit  # noqa: PLC0415 (as needed)

        check_fit(catalog, _manifests(expected))


def _no_manifests(name: str, uri: str) -> FormatError:
    what = f"a manifest has the digests of safetensors files, and this checkpoint is of the format {name}"
    return FormatError(
        what,
        uri=uri,
        hint='Leave verify="manifest" out; or save the tensors with streamer.save, which writes a manifest',
    )


_STRATEGIES: dict[str, Strategy | None] = {"auto": ByStore(), "manifest": ByManifest(), "off": None}


def digests_of(store: Store, infos: Sequence[ObjectInfo]) -> list[ObjectDigest | NoDigest]:
    """Return the digests that a storage keeps of objects; each is valid, and belongs to the described version."""
    if not isinstance(store, DigestingStore):
        return [_NOT_OFFERED for _ in infos]
    return in_parallel(lambda info: _digest_of(store, info), infos, role="digest")


def _digest_of(store: DigestingStore, info: ObjectInfo) -> ObjectDigest | NoDigest:
    digest = store.digest(info)
    if isinstance(digest, ObjectDigest) and (doubt := doubt_of(digest, info.version)) is not None:
        return NoDigest(doubt)
    if isinstance(digest, NoDigest) or (isinstance(digest, ObjectDigest) and is_sound(digest, info.size_bytes)):
        return digest
    raise PluginError("the store's digest is neither a NoDigest nor a sound ObjectDigest of it", uri=info.uri)


def _manifests(expected: Sequence[Expected]) -> list[ManifestOfShard]:
    return [each for each in expected if isinstance(each, ManifestOfShard)]
