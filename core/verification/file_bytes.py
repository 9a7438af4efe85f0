"""The bytes of single files, read in order and in bounded memory, and their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamer import _native
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import ChecksumError
from streamer.core.options.settings import Settings
from streamer.core.shards.shards import check_unchanged, size_of, source_object
from streamer.core.store.digests import CHECKSUMS, HASHES, NOT_REQUESTED, NoDigest, ObjectDigest
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.verification.by_store import digests_of, mismatch

OWN = "crc32c"  # the algorithm of the record; processors have an instruction for it


class FileDigests:
    """The digests of one file.

    Attributes:
        verified_by: The algorithm of the storage's digest, or None.
    """

    def __init__(self, source_object: SourceObject, expected: ObjectDigest | NoDigest) -> None:
        self._object = source_object
        self._expected = expected if isinstance(expected, ObjectDigest) else None
        self.verified_by = self._expected.algorithm if self._expected else None
        self._own = self._of_part = self._part = self._position = 0
        self._hash: Any = None
        if self.verified_by in HASHES:
            self._hash = hashlib.new(str(self.verified_by), usedforsecurity=False)

    @property
    def crc32c(self) -> str:
        """The CRC-32C of the bytes so far, in hexadecimal digits."""
        return f"{self._own:08x}"

    @property
    def position_bytes(self) -> int:
        """Number of bytes that were added."""
        return self._position

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        self._own = _native.crc(OWN, data, self._own)
        if self._hash is not None:
            self._hash.update(data)
        elif self._expected is not None:
            self._update_parts(self._expected, data)
        self._position += data.nbytes

    def finish(self) -> None:
        """Compare digests that `update` cannot compare: a hash, the checksum of an empty file; raises as `update`."""
        if self._expected is None:
            return
        if self._hash is not None:
            self._compare(0, self._position, self._expected.parts[0].value, self._hash.hexdigest())
        elif self._position == 0:
            self._compare(0, 0, self._expected.parts[0].value, self._checksum_of_part())

    def _update_parts(self, expected: ObjectDigest, data: memoryview) -> None:
        position = self._position
        while data.nbytes:
            part = expected.parts[self._part]
            some = data[: part.end - position]
            self._of_part = _native.crc(expected.algorithm, some, self._of_part)
            position, data = position + some.nbytes, data[some.nbytes :]
            if position == part.end:
                begin = expected.parts[self._part - 1].end if self._part else 0
                self._compare(begin, part.end, part.value, self._checksum_of_part())
                self._part, self._of_part = self._part + 1, 0

    def _checksum_of_part(self) -> str:
        return f"{self._of_part:0{2 * CHECKSUMS[str(self.verified_by)]}x}"

    def _compare(self, begin: int, end: int, expected: str, found: str) -> None:
        if found != expected:
            raise mismatch(self._object, str(self.verified_by), (begin, end), expected, found)


def hash_of(digest: ObjectDigest | NoDigest) -> str | None:
    """Return the hash that identifies the content of a file, or None; a checksum is too weak to identify content.

    Example:
        >>> from streamer.core.store.digests import PartDigest
        >>> hash_of(ObjectDigest("sha256", (PartDigest(9, "0f"),)))
        'sha256:0f'
    """
    if isinstance(digest, NoDigest) or digest.algorithm not in HASHES:
        return None
    return f"{digest.algorithm}:{digest.parts[0].value}"


PIECE_BYTES = 16 << 20  # as large as a part that is sent, so that no piece is cut or copied
MOST_PIECES = 4  # read at the same time, while the same number is sent


@dataclass(frozen=True)
class FileBytes:
    """One file."""

    store: Store  # the store of the file
    info: ObjectInfo  # the store's description of the file, with its size
    settings: Settings  # how to read the file

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return size_of(self.info)

    def digest(self) -> ObjectDigest | NoDigest:
        """Return the digest that the storage keeps of the file's content, or the reason why it has none."""
        return digests_of(self.store, [self.info])[0]

    def digests(self, expected: ObjectDigest | NoDigest = NOT_REQUESTED) -> FileDigests:
        """Return digests to be updated with the bytes of the file, and compared with what is expected."""
        return FileDigests(source_object(self.store, self.info), expected)

    def pieces(self, digests: FileDigests) -> Iterator[memoryview]:
        """Read the file in order."""
        read = source_object(self.store, self.info)
        most = max(1, min(MOST_PIECES, self.settings.memory_limit_bytes // (4 * PIECE_BYTES)))
        for begin in range(0, self.size_bytes, most * PIECE_BYTES):
            end = min(begin + most * PIECE_BYTES, self.size_bytes)
            ranges = [(0, at, min(at + PIECE_BYTES, end)) for at in range(begin, end, PIECE_BYTES)]
            contents, (read,) = read_ranges([read], ranges, self.settings, what="parts")
            for content in contents:
                digests.update(content)
                yield content
        self._check_unchanged()
        digests.finish()

    def crc32c(self) -> int:
        """Return the CRC-32C of the file: the one that the storage keeps, or else of its bytes, which are read."""
        digest = self.digest()
        if isinstance(digest, ObjectDigest) and digest.algorithm == OWN:
            value = begin = 0
            for part in digest.parts:
                value, begin = _native.crc_combine(OWN, value, int(part.value, 16), part.end - begin), part.end
            return value
        digests = self.digests(digest)
        for _ in self.pieces(digests):
            pass
        return int(digests.crc32c, 16)

    def _check_unchanged(self) -> None:
        """Check that the file has not changed: requests to object stores name a version, but reads of a disk do not."""
        if self.info.version is not None:
            check_unchanged(self.info, info_if_present(self.store, self.info.path))


def are_equal(one: FileBytes, other: FileBytes) -> bool:
    """Say whether two files have the same content; compare the digests that their storages keep, if there are any."""
    if one.size_bytes != other.size_bytes:
        return False
    of_one = one.digest()
    if isinstance(of_one, ObjectDigest):
        return of_one == other.digest() or _matches(other.pieces, one, of_one)
    return has_content(other, one.pieces)


def has_content(file: FileBytes, pieces: Callable[[FileDigests], Iterator[memoryview]]) -> bool:
    """Say whether a file has this content of equal size; use the digest that its storage keeps, if there is one."""
    digest = file.digest()
    if isinstance(digest, ObjectDigest):
        return _matches(pieces, file, digest)
    of_file, of_pieces = file.digests(), file.digests()
    for _ in pieces(of_pieces):
        pass
    for _ in file.pieces(of_file):
        pass
    return of_file.crc32c == of_pieces.crc32c


def _matches(pieces: Callable[[FileDigests], Iterator[memoryview]], file: FileBytes, digest: ObjectDigest) -> bool:
    try:
        for _ in pieces(file.digests(digest)):
            pass
    except ChecksumError:
        return False
    return True
