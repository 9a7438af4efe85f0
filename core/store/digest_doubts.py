"""Digests that cannot be of a whole object, though a storage gives them as if they were. Pure.

An object that was uploaded in parts often has a digest of the digests of these parts: as its ETag (``"…-6"``), or as
its checksum. Compared with the bytes it would call right ones wrong, and without its number of parts nothing tells it
from a digest of the whole. It is doubted: the object counts as not verified, and the report says why.
"""

from __future__ import annotations

import re

from streamer.core.store.digests import ObjectDigest

__all__ = ["doubt_of", "parts_in_etag"]

_ETAG_OF_PARTS = re.compile(r'(?:W/)?"?([0-9A-Fa-f]{32})-([0-9]{1,5})"?')
_VALUE_OF_PARTS = re.compile(r"[0-9A-Fa-f]+-([0-9]{1,9})")


def parts_in_etag(etag: str | None) -> int | None:
    """Return in how many parts an object was uploaded, by its ETag; None where that does not tell.

    Example:
        >>> [parts_in_etag(etag) for etag in ('"9b2cf535f27731c974343645a3985328-6"', '"9b2cf535"', None)]
        [6, None, None]
    """
    found = _ETAG_OF_PARTS.fullmatch(etag or "")
    return int(found[2]) if found else None


def doubt_of(digest: ObjectDigest, version: str | None) -> str | None:
    """Say why a digest of one value cannot be of the whole object; None where it can.

    Args:
        digest: As a store gives it.
        version: The object's, which may be its ETag.

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
