"""The digests that a storage reports for an object, and doubts whether they are of the whole object. Pure.

There are two kinds of digest. A checksum can be combined from pieces in any order, so the engine's readers compute it.
A hash needs all bytes in order, so it is computed when the tensors are delivered.

An object that was uploaded in parts often has a digest of the digests of these parts: as its ETag (``"…-6"``), or as
its checksum. A comparison with the bytes would report correct bytes as wrong. Without its number of parts, such a
digest looks like a digest of the whole object. If there is such a doubt, the object counts as not verified, and the
report says why.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from streamer import _native

CHECKSUMS = {"crc32": 4, "crc32c": 4, "crc64nvme": 8}  # bytes of a value
HASHES = {"md5": 16, "sha1": 20, "sha256": 32}

_ETAG_OF_PARTS = re.compile(r'(?:W/)?"?([0-9A-Fa-f]{32})-([0-9]{1,5})"?')
_VALUE_OF_PARTS = re.compile(r"[0-9A-Fa-f]+-([0-9]{1,9})")


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


def is_of_bytes(digest: object, data: memoryview) -> bool | None:
    """Say whether a digest is that of these bytes; None if it is no digest of a whole object.

    Example:
        >>> is_of_bytes(ObjectDigest("crc32c", (PartDigest(9, "e3069283"),)), memoryview(b"123456789"))
        True
    """
    if not isinstance(digest, ObjectDigest) or len(digest.parts) != 1:
        return None
    if digest.algorithm in HASHES:
        return hashlib.new(digest.algorithm, data, usedforsecurity=False).hexdigest() == digest.parts[0].value
    return _native.crc(digest.algorithm, data) == int(digest.parts[0].value, 16)


def parts_in_etag(etag: str | None) -> int | None:
    """Return the number of parts in which an object was uploaded, from its ETag; None if the ETag does not say.

    Example:
        >>> [parts_in_etag(etag) for etag in ('"9b2cf535f27731c974343645a3985328-6"', '"9b2cf535"', None)]
        [6, None, None]
    """
    match = _ETAG_OF_PARTS.fullmatch(etag or "")
    return int(match[2]) if match else None


def doubt_of(digest: ObjectDigest, version: str | None) -> str | None:
    """Say why a digest of one value is not of the whole object; None if it may be.

    Example:
        >>> from streamer.core.store.digests import PartDigest
        >>> doubt_of(ObjectDigest("md5", (PartDigest(9, "9b2cf535f27731c974343645a3985328-6"),)), None)
        'its md5 is one of the 6 parts of an upload, not of the whole'
    """
    value = digest.parts[0].value if len(digest.parts) == 1 else None
    if not isinstance(value, str):
        return None
    of_value, of_etag = _VALUE_OF_PARTS.fullmatch(value), _ETAG_OF_PARTS.fullmatch(version or "")
    if of_value is not None:
        count = of_value[1]
    elif of_etag is not None and of_etag[1].lower() == value.lower():
        count = of_etag[2]
    else:
        return None
    return f"its {digest.algorithm} is one of the {count} parts of an upload, not of the whole"
