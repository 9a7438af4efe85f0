"""The digests of one file, updated with its bytes in order: a CRC-32C for the record, and the storage's digest."""

from __future__ import annotations

import hashlib
from typing import Any

from streamer import _native
from streamer.core.checkpoint.store_verification import mismatch
from streamer.core.engine.session import SourceObject
from streamer.core.store.digests import CHECKSUMS, HASHES, NoDigest, ObjectDigest

__all__ = ["OWN", "FileDigests", "hash_of"]

OWN = "crc32c"  # the algorithm of the record; processors have an instruction for it


class FileDigests:
    """The digests of one file.

    Args:
        source_object: The file that is read.
        expected: The digest that its storage keeps.

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
        """Add the next bytes.

        Raises:
            ChecksumError: a part is complete, and its digest differs from the storage's.
        """
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
