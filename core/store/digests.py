"""The digests that a storage reports for an object: of the whole, of its parts, or the reason why it has none.

There are two kinds of digest. A checksum can be combined from pieces in any order, so the engine's readers compute it.
A hash needs all bytes in order, so it is computed when the tensors are delivered.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

__all__ = [
    "CHECKSUMS",
    "HASHES",
    "NOT_REQUESTED",
    "NoDigest",
    "ObjectDigest",
    "PartDigest",
    "digest_of_base64",
    "is_sound",
]

CHECKSUMS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8}  # bytes of a value
HASHES = {"md5": 16, "sha1": 20, "sha256": 32}


@dataclass(frozen=True)
class PartDigest:
    """One part of an object.

    Attributes:
        end: Offset after its last byte; the part begins at the end of the part before it.
        value: The digest, in lower-case hexadecimal digits.
    """

    end: int
    value: str


@dataclass(frozen=True)
class ObjectDigest:
    """Digests that cover an object, by one algorithm.

    Attributes:
        algorithm: A key of `CHECKSUMS` or `HASHES`.
        parts: Parts in order; the `end` of the last part is the object's size. A hash has one part.
    """

    algorithm: str
    parts: tuple[PartDigest, ...]


@dataclass(frozen=True)
class NoDigest:
    """The reason why a storage has no digest of an object, in a few words for the load's report."""

    reason: str


NOT_REQUESTED = NoDigest("digests were not requested")


def digest_of_base64(algorithm: str, text: str | bytes, size_bytes: int) -> ObjectDigest | NoDigest:
    """Parse a digest of a whole object in the form of storages: base64 of the value, most significant byte first.

    Example:
        >>> digest_of_base64("crc32c", "4waSgw==", 9).parts[0].value
        'e3069283'
    """
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != {**CHECKSUMS, **HASHES}[algorithm]:
        return NoDigest(f"the storage's {algorithm} is malformed")
    return ObjectDigest(algorithm, (PartDigest(size_bytes, value.hex()),))


def is_sound(digest: ObjectDigest, size_bytes: int | None) -> bool:
    """Say whether a digest fits an object of this size: supported algorithm, complete parts, all digits.

    Example:
        >>> is_sound(ObjectDigest("crc32c", (PartDigest(9, "e3069283"),)), 9)
        True
    """
    value_bytes = {**CHECKSUMS, **HASHES}.get(digest.algorithm)
    ends = [part.end for part in digest.parts]
    if value_bytes is None or not ends or ends != sorted(set(ends)) or ends[-1] != size_bytes:
        return False
    if ends[0] <= 0 and ends != [0]:  # only an empty object ends at 0
        return False
    if digest.algorithm in HASHES and len(ends) != 1:
        return False
    return all(re.fullmatch(f"[0-9a-f]{{{2 * value_bytes}}}", part.value) for part in digest.parts)
