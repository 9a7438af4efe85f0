"""Compares what is read with digests that are not the user's own: those of the storage, and those in an archive.

``verify="auto"`` compares each object that is read whole with the digest that its storage keeps. Checksums are combined
from the checksums of pieces, which the engine's readers compute in any order. Hashes (md5, sha1, sha256) need the bytes
in order. So tensors are handed out in file order, each after its bytes were added to the hash. An object that is read
in part cannot be compared with its digest. If its server sends a checksum with each answer, the engine's readers
compare the answers.

A tensor of an archive has a CRC-32 in its own file. It is compared without ``verify=``, too, as other readers of the
file do: by the engine, before the tensor is handed out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, ShardTensor
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import ChecksumError, PluginError
from streamer.core.options.settings import Settings
from streamer.core.shards.shards import Expected, ManifestOfShard, Shards
from streamer.core.store.digests import CHECKSUMS, NoDigest, ObjectDigest, doubt_of, is_sound
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import DigestingStore, HttpSource, ObjectInfo, Store
from streamer.core.verification.strategy import DIFFERS, Pieces, Verification


class ByStore:
    """``"auto"``: each object that is read whole is compared with the digest that its storage keeps, if any."""

    compares_objects = True

    def expected_of(self, store: Store, found: Sequence[Shards], settings: Settings) -> list[list[Expected]]:
        digests = iter(digests_of(store, [info for shards in found for info in shards.infos]))
        return [[*islice(digests, len(shards.infos))] for shards in found]

    def verification(
        self, catalog: Catalog, expected: Sequence[Expected], wanted: Sequence[ShardTensor]
    ) -> Verification:
        digests = [each for each in expected if not isinstance(each, ManifestOfShard)]
        return StoreVerification(catalog, wanted, digests)

    def check_headers(self, catalog: Catalog, expected: Sequence[Expected]) -> None:
        pass


_NOT_OFFERED = NoDigest("its storage keeps no digest of it")


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


class StoreVerification:
    """Compares objects with the digests of their storage; see `streamer.core.verification.strategy.Verification`."""

    def __init__(
        self, catalog: Catalog, wanted: Sequence[ShardTensor], digests: Sequence[ObjectDigest | NoDigest]
    ) -> None:
        self._wanted = wanted
        self._shards = catalog.shards
        self._objects: list[_ChecksummedObject | _HashedObject | ObjectCheck] = []
        items, sizes = Counter[int](), Counter[int]()
        for shard_tensor in wanted:
            items[shard_tensor.shard] += 1
            sizes[shard_tensor.shard] += shard_tensor.entry.end - shard_tensor.entry.begin
        for shard, (source_object, digest) in enumerate(zip(catalog.shards, digests, strict=True)):
            header = catalog.headers[shard]
            if isinstance(digest, NoDigest):
                self._objects.append(ObjectCheck(source_object.uri, None, digest.reason))
            elif len(header) + sizes[shard] != source_object.size_bytes or not items[shard]:
                what = "only a part" if items[shard] else "nothing"
                self._objects.append(ObjectCheck(source_object.uri, None, f"{what} of it was read"))
            elif digest.algorithm in CHECKSUMS:
                self._objects.append(_ChecksummedObject(source_object, digest, header, items[shard]))
            else:
                self._objects.append(_HashedObject(source_object, digest, header, items[shard]))
        self._left = items  # shard number to its items that were not taken yet
        self.needs_order = any(isinstance(each, _HashedObject) for each in self._objects)
        self.digests = self._plan()

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Add an item to its object, and compare the object after its last item."""
        self._left[self._wanted[item].shard] -= 1
        pending = self._objects[self._wanted[item].shard]
        if isinstance(pending, _ChecksummedObject):
            pending.add(pieces(item))
        elif isinstance(pending, _HashedObject):
            entry = self._wanted[item].entry
            pending.add(data, entry.end - entry.begin)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return for each object whether it was compared."""
        return tuple(self._check(shard, compares_answers) for shard in range(len(self._objects)))

    def _check(self, shard: int, compares_answers: Callable[[int], bool]) -> ObjectCheck:
        each = self._objects[shard]
        check = each if isinstance(each, ObjectCheck) else each.check()
        source_object = self._shards[shard]
        is_wrong = isinstance(each, _PendingObject) and each.is_wrong
        is_read = shard in self._left and not self._left[shard]
        is_compared = source_object.compares_answers and compares_answers(shard)
        if check.verified_by or is_wrong or not is_read or not is_compared:
            return check
        assert isinstance(source_object.source, HttpSource)
        assert source_object.source.answer_checksum is not None
        return ObjectCheck(source_object.uri, f"{source_object.source.answer_checksum.algorithm} of each answer", None)

    def _plan(self) -> _native.DigestPlan | None:
        if not any(isinstance(each, _ChecksummedObject) for each in self._objects):
            return None
        plan = _native.DigestPlan()
        for shard, each in enumerate(self._objects):
            if isinstance(each, _ChecksummedObject):
                plan.cut(shard, [part.end for part in each.digest.parts])
        for shard_tensor in self._wanted:
            each = self._objects[shard_tensor.shard]
            plan.add_item(
                shard_tensor.shard, each.digest.algorithm if isinstance(each, _ChecksummedObject) else None, None
            )
        return plan


class _PendingObject:
    """An object whose digest is compared once its last item is added."""

    def __init__(self, source_object: SourceObject, digest: ObjectDigest, items: int) -> None:
        self.source_object, self.digest = source_object, digest
        self._missing = items
        self._obstacle: str | None = None  # why the digest can no longer be compared
        self.is_wrong = False

    def check(self) -> ObjectCheck:
        if self._obstacle or self._missing:
            return ObjectCheck(self.source_object.uri, None, self._obstacle or "not all of it was read yet")
        parts = len(self.digest.parts)
        of_parts = f" of {parts} parts" if parts > 1 else ""
        return ObjectCheck(self.source_object.uri, f"{self.digest.algorithm}{of_parts}", None)

    def _compare(self, begin: int, end: int, expected: str, found: str) -> None:
        if found == expected:
            return
        self._obstacle = DIFFERS
        self.is_wrong = True
        raise mismatch(self.source_object, self.digest.algorithm, (begin, end), expected, found)


def mismatch(
    source_object: SourceObject, algorithm: str, byte_range: tuple[int, int], expected: str, found: str
) -> ChecksumError:
    """Return the error for bytes whose digest differs from the one that the storage keeps."""
    return ChecksumError(
        f"the {algorithm} mismatches the storage's: {expected} expected, {found} found",
        uri=source_object.uri,
        hint="Upload the file again; if it is right elsewhere, read again",
        byte_range=byte_range,
        object_size=source_object.size_bytes,
        algorithm=algorithm,
        expected=expected,
        found=found,
    )


class _ChecksummedObject(_PendingObject):
    """An object with a checksum of each part, or one checksum of the whole."""

    def __init__(self, source_object: SourceObject, digest: ObjectDigest, header: bytes, items: int) -> None:
        super().__init__(source_object, digest, items)
        self._ends = [part.end for part in digest.parts]
        self._values = [0] * len(self._ends)
        self._pieces: Pieces = []
        begin = 0
        while begin < len(header):
            end = min(len(header), self._ends[bisect_right(self._ends, begin)])
            self._pieces.append((begin, end - begin, _native.crc(digest.algorithm, header[begin:end])))
            begin = end

    def add(self, pieces: Pieces) -> None:
        self._pieces += pieces
        self._missing -= 1
        if not self._missing:
            self._compare_all()

    def _compare_all(self) -> None:
        algorithm = self.digest.algorithm
        for begin, size_bytes, value in sorted(self._pieces):
            number = bisect_right(self._ends, begin)
            self._values[number] = _native.crc_combine(algorithm, self._values[number], value, size_bytes)
        begin = 0
        for part, value in zip(self.digest.parts, self._values, strict=True):
            self._compare(begin, part.end, part.value, f"{value:0{2 * CHECKSUMS[algorithm]}x}")
            begin = part.end


class _HashedObject(_PendingObject):
    """An object with one hash of the whole."""

    def __init__(self, source_object: SourceObject, digest: ObjectDigest, header: bytes, items: int) -> None:
        super().__init__(source_object, digest, items)
        self._hash: Any = hashlib.new(digest.algorithm, header, usedforsecurity=False)

    def add(self, data: memoryview | None, size_bytes: int) -> None:
        self._missing -= 1
        if data is not None:
            self._hash.update(data)
        elif size_bytes:
            self._obstacle = f"its tensors did not pass through host memory, where {self.digest.algorithm} is computed"
        if not self._missing and not self._obstacle:
            self._compare(0, self.source_object.size_bytes, self.digest.parts[0].value, self._hash.hexdigest())


ALGORITHM = "crc32"


def with_checksums(
    catalog: Catalog, wanted: Sequence[ShardTensor], verification: Verification | None
) -> Verification | None:
    """Return the verification of one read that also compares the checksums of whole tensors in the files.

    What ``verify=`` asks for must not need digests of the engine.
    """
    digests = _native.DigestPlan()
    is_any = False
    for each in wanted:
        crc = catalog.checksums.get(each.entry.name) if catalog.is_read_whole(each) else None
        digests.add_item(each.shard, None if crc is None else ALGORITHM, crc)
        is_any = is_any or crc is not None
    return ArchiveVerification(digests, verification) if is_any else verification


class ArchiveVerification:
    """Compares each tensor that is read whole with the checksum in its file.

    See `streamer.core.verification.strategy.Verification`.
    """

    def __init__(self, digests: _native.DigestPlan, verification: Verification | None) -> None:
        self.digests, self._verification = digests, verification
        self.needs_order = verification is not None and verification.needs_order

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Pass the item on; the engine has already compared it."""
        if self._verification is not None:
            self._verification.take(item, data, pieces)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Return what ``verify=`` compared."""
        return self._verification.checks(compares_answers) if self._verification is not None else ()
