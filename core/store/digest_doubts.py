"""Recognises digests that are not of a whole object, although a storage reports them as such. Pure.

An object that was uploaded in parts often has a digest of the digests of these parts: as its ETag (``"…-6"``), or as
its checksum. A comparison with the bytes would report correct bytes as wrong. Without its number of parts, such a
digest looks like a digest of the whole object. If there is such a doubt, the object counts as not verified, and the
report says why.
"""

from __future__ import annotations

import re

from streamer.core.store.digests import ObjectDigest

__all__ = ["doubt_of", "parts_in_etag"]

_ETAG_OF_PARTS = re.compile(r'(?:W/)?"?([0-9A-Fa-f]{32})-([0-9]{1,5})"?')
_VALUE_OF_PARTS = re.compile(r"[0-9A-Fa-f]+-([0-9]{1,9})")


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

    Args:
        digest: The digest that a store returned.
        version: The version of the object, which may be its ETag.

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
