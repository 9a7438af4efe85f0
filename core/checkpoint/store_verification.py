"""``verify="auto"``: each object that is read whole is compared with the digest its storage keeps of it.

Checksums are combined from what the engine's readers computed, in any order. Hashes (md5, sha1, sha256) want the bytes
in order: tensors are then handed out in file order, and each goes through the hash before. An object of which only a
part is read has no digest to be compared with; where its server sends a checksum with each answer, the engine's readers
compared those.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import Catalog, Located
from streamer.core.checkpoint.report import ObjectCheck
from streamer.core.checkpoint.verification import Pieces
from streamer.core.engine.session import SourceObject
from streamer.core.errors import ChecksumError
from streamer.core.store.digests import CHECKSUMS, NoDigest, ObjectDigest
from streamer.core.store.sources import HttpSource

__all__ = ["StoreVerification"]


class StoreVerification:
    """Compares objects with their storage's digests; see `streamer.core.checkpoint.verification.Verification`.

    Args:
        catalog: All tensors of the checkpoint, with the bytes of its headers.
        wanted: The items to be read, in file order.
        offered: By shard, what its storage keeps.
    """

    def __init__(self, catalog: Catalog, wanted: Sequence[Located], offered: Sequence[ObjectDigest | NoDigest]) -> None:
        self._wanted = wanted
        self._shards = catalog.shards
        self._objects: list[_Summed | _Hashed | ObjectCheck] = []
        items, sizes = Counter[int](), Counter[int]()
        for located in wanted:
            items[located.shard] += 1
            sizes[located.shard] += located.entry.end - located.entry.begin
        for shard, (known, digest) in enumerate(zip(catalog.shards, offered, strict=True)):
            header = catalog.headers[shard]
            if isinstance(digest, NoDigest):
                self._objects.append(ObjectCheck(known.uri, None, digest.reason))
            elif len(header) + sizes[shard] != known.size_bytes or not items[shard]:
                what = "only a part" if items[shard] else "nothing"
                self._objects.append(ObjectCheck(known.uri, None, f"{what} of it was read"))
            elif digest.algorithm in CHECKSUMS:
                self._objects.append(_Summed(known, digest, header, items[shard]))
            else:
                self._objects.append(_Hashed(known, digest, header, items[shard]))
        self._left = items  # to be taken, of the shards that have any
        self.needs_order = any(isinstance(each, _Hashed) for each in self._objects)
        self.digests = self._plan()

    def take(self, item: int, data: memoryview | None, pieces: Callable[[int], Pieces]) -> None:
        """Add an item to its object; compare with the last one.

        Raises:
            ChecksumError: the object's bytes are not those its storage keeps a digest of.
        """
        self._left[self._wanted[item].shard] -= 1
        awaited = self._objects[self._wanted[item].shard]
        if isinstance(awaited, _Summed):
            awaited.add(pieces(item))
        elif isinstance(awaited, _Hashed):
            entry = self._wanted[item].entry
            awaited.add(data, entry.end - entry.begin)

    def checks(self, compares_answers: Callable[[int], bool]) -> tuple[ObjectCheck, ...]:
        """Tell of each object whether it was compared."""
        return tuple(self._check(shard, compares_answers) for shard in range(len(self._objects)))

    def _check(self, shard: int, compares_answers: Callable[[int], bool]) -> ObjectCheck:
        each = self._objects[shard]
        told = each if isinstance(each, ObjectCheck) else each.check()
        known = self._shards[shard]
        is_wrong = isinstance(each, _Awaited) and each.is_wrong
        is_read = shard in self._left and not self._left[shard]
        if told.verified_by or is_wrong or not is_read or not known.compares_answers or not compares_answers(shard):
            return told
        assert isinstance(known.source, HttpSource)
        assert known.source.answer_checksum is not None
        return ObjectCheck(known.uri, f"{known.source.answer_checksum.algorithm} of each answer", None)

    def _plan(self) -> _native.DigestPlan | None:
        if not any(isinstance(each, _Summed) for each in self._objects):
            return None
        plan = _native.DigestPlan()
        for shard, each in enumerate(self._objects):
            if isinstance(each, _Summed):
                plan.cut(shard, [part.end for part in each.digest.parts])
        for located in self._wanted:
            each = self._objects[located.shard]
            plan.add_item(located.shard, each.digest.algorithm if isinstance(each, _Summed) else None, None)
        return plan


class _Awaited:
    """An object whose digest is compared when its last item was added."""

    def __init__(self, known: SourceObject, digest: ObjectDigest, items: int) -> None:
        self.known, self.digest = known, digest
        self._missing = items
        self._unseen: str | None = None  # why it can no longer be compared
        self.is_wrong = False

    def check(self) -> ObjectCheck:
        if self._unseen or self._missing:
            return ObjectCheck(self.known.uri, None, self._unseen or "not all of it was read yet")
        parts = len(self.digest.parts)
        of_parts = f" of {parts} parts" if parts > 1 else ""
        return ObjectCheck(self.known.uri, f"{self.digest.algorithm}{of_parts}", None)

    def _compare(self, begin: int, end: int, expected: str, found: str) -> None:
        if found == expected:
            return
        self._unseen = "its digest is another"
        self.is_wrong = True
        raise ChecksumError(
            f"the bytes are not those the storage keeps a digest of: {self.digest.algorithm} {expected} expected,"
            f" {found} found",
            uri=self.known.uri,
            hint="Upload the file again; if it is right elsewhere, read again",
            byte_range=(begin, end),
            object_size=self.known.size_bytes,
            algorithm=self.digest.algorithm,
            expected=expected,
            found=found,
        )


class _Summed(_Awaited):
    """An object with checksums of its parts, or one of the whole."""

    def __init__(self, known: SourceObject, digest: ObjectDigest, header: bytes, items: int) -> None:
        super().__init__(known, digest, items)
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
            part = bisect_right(self._ends, begin)
            self._values[part] = _native.crc_combine(algorithm, self._values[part], value, size_bytes)
        begin = 0
        for known, found in zip(self.digest.parts, self._values, strict=True):
            self._compare(begin, known.end, known.value, f"{found:0{2 * CHECKSUMS[algorithm]}x}")
            begin = known.end


class _Hashed(_Awaited):
    """An object with a hash of the whole."""

    def __init__(self, known: SourceObject, digest: ObjectDigest, header: bytes, items: int) -> None:
        super().__init__(known, digest, items)
        self._hash: Any = hashlib.new(digest.algorithm, header, usedforsecurity=False)

    def add(self, data: memoryview | None, size_bytes: int) -> None:
        self._missing -= 1
        if data is not None:
            self._hash.update(data)
        elif size_bytes:
            self._unseen = f"its tensors did not pass through host memory, where {self.digest.algorithm} is computed"
        if not self._missing and not self._unseen:
            self._compare(0, self.known.size_bytes, self.digest.parts[0].value, self._hash.hexdigest())
