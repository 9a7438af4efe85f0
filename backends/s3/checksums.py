"""Parses the checksums that S3 keeps of an object. Pure.

An object has one checksum of all its bytes (FULL_OBJECT). After some multipart uploads it has a checksum of the
checksums of its parts instead (COMPOSITE, ``value-parts``), which can only be verified with the sizes of these parts.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

from streamer.backends.s3.answers import FIELDS
from streamer.core.store.digests import CHECKSUMS, NoDigest, ObjectDigest, PartDigest, digest_of_base64, parts_in_etag

_PARTS = re.compile(r"[0-9]{1,5}")  # S3 allows 10 000 parts


class Composite:
    """A checksum of the checksums of parts."""

    def __init__(self, field: str, parts: int) -> None:
        self.field = field
        self.algorithm = FIELDS[field]
        self.parts = parts


def digest_in_head(answer: Mapping[str, Any], size_bytes: int) -> ObjectDigest | NoDigest | Composite:
    """Parse the answer of HeadObject with ``ChecksumMode=ENABLED``.

    Example:
        >>> digest_in_head({"ChecksumCRC32C": "4waSgw=="}, 9).parts[0].value
        'e3069283'
    """
    field = next((field for field in FIELDS if answer.get(field)), None)
    if field is None:
        return NoDigest("it was uploaded without a checksum, and S3 keeps none")
    algorithm, uploaded_parts = FIELDS[field], parts_in_etag(answer.get("ETag"))
    value, has_parts, parts = str(answer[field]).partition("-")
    if not has_parts and answer.get("ChecksumType") != "COMPOSITE":
        doubt = _doubt_of_whole(algorithm, answer.get("ChecksumType"), uploaded_parts)
        return digest_of_base64(algorithm, value, size_bytes) if doubt is None else NoDigest(doubt)
    if algorithm not in CHECKSUMS:
        return NoDigest(f"its {algorithm} is a checksum of the parts of a multipart upload")
    if not _PARTS.fullmatch(parts):
        return NoDigest("the storage's checksum is malformed")
    if uploaded_parts not in (None, int(parts)):
        return NoDigest(f"its {algorithm} is of {int(parts)} parts, and its ETag of {uploaded_parts}")
    return Composite(field, int(parts))


def _doubt_of_whole(algorithm: str, kind: str | None, uploaded_parts: int | None) -> str | None:
    """Say why a checksum may not be of the whole object; None if it is of the whole object.

    After an upload in parts, S3 itself keeps hashes only of the parts, and CRC64NVME only of the whole object. The type
    decides for other checksums, but older servers do not send it.
    """
    if kind not in (None, "FULL_OBJECT"):
        return f"its {algorithm} is of a kind that is not known"
    if uploaded_parts is None or algorithm == "crc64nvme" or (algorithm in CHECKSUMS and kind is not None):
        return None
    return f"it was uploaded in {uploaded_parts} parts, and its {algorithm} may be of these, not of the whole"


def digest_of_parts(
    composite: Composite, parts: Iterable[Mapping[str, Any]], size_bytes: int
) -> ObjectDigest | NoDigest:
    """Parse the parts that GetObjectAttributes lists, from all pages."""
    digests: list[PartDigest] = []
    end = 0
    for part in parts:
        size, text = part.get("Size"), part.get(composite.field)
        if not isinstance(size, int) or size <= 0 or not text:
            return NoDigest("the storage does not report the checksums of its parts")
        end += size
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value = b""
        if len(value) != CHECKSUMS[composite.algorithm]:
            return NoDigest("the storage's checksum of a part is malformed")
        digests.append(PartDigest(end, value.hex()))
    if end != size_bytes or len(digests) != composite.parts:
        return NoDigest("the storage does not report the sizes of all its parts")
    return ObjectDigest(composite.algorithm, tuple(digests))
