"""What S3 says of an object's checksum, of the whole and of its parts."""

from __future__ import annotations

import base64
from typing import Any

from each_row import each_row

from streamer import _native
from streamer.backends.s3.answers import Composite, digest_in_head, digest_of_parts
from streamer.core.store.digests import NoDigest, ObjectDigest, PartDigest

CRC32C = "4waSgw=="  # of "123456789"
SHA256 = base64.b64encode(bytes(32)).decode()
ETAG_OF_PARTS = '"9b2cf535f27731c974343645a3985328-6"'


@each_row(
    ("answer", "algorithm"),
    [
        ({"ChecksumCRC32C": CRC32C}, "crc32c"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "FULL_OBJECT"}, "crc32c"),
        ({"ChecksumCRC32": "y/Q5Jg=="}, "crc32"),
        ({"ChecksumCRC64NVME": "rosUhgp5mIg=", "ChecksumSHA1": "unused"}, "crc64nvme"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, "sha256"),
        ({"ChecksumSHA1": base64.b64encode(bytes(20)).decode()}, "sha1"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "FULL_OBJECT", "ETag": ETAG_OF_PARTS}, "crc32c"),
        ({"ChecksumCRC64NVME": "rosUhgp5mIg=", "ETag": ETAG_OF_PARTS}, "crc64nvme"),
        ({"ChecksumCRC32C": CRC32C, "ETag": '"9b2cf535f27731c974343645a3985328"'}, "crc32c"),
    ],
)
def test_a_checksum_of_the_whole(answer: dict[str, str], algorithm: str) -> None:
    digest = digest_in_head(answer, 9)
    assert isinstance(digest, ObjectDigest)
    assert (digest.algorithm, [part.end for part in digest.parts]) == (algorithm, [9])


@each_row(
    ("answer", "reason"),
    [
        ({}, "without a checksum"),
        ({"ChecksumCRC32C": "!"}, "malformed"),
        ({"ChecksumCRC32C": f"{CRC32C}-x"}, "malformed"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "COMPOSITE"}, "malformed"),
        ({"ChecksumSHA256": "AAAA-3"}, "a checksum of the parts"),
        ({"ChecksumCRC32C": CRC32C, "ETag": ETAG_OF_PARTS}, "6 parts, and its crc32c may be of these"),
        ({"ChecksumSHA256": SHA256, "ETag": ETAG_OF_PARTS}, "6 parts, and its sha256 may be of these"),
        ({"ChecksumSHA256": SHA256, "ChecksumType": "FULL_OBJECT", "ETag": ETAG_OF_PARTS}, "may be of these"),
        ({"ChecksumCRC32C": CRC32C, "ChecksumType": "PARTIAL"}, "of a kind that is not known"),
        ({"ChecksumCRC32C": f"{CRC32C}-5", "ETag": ETAG_OF_PARTS}, "is of 5 parts, and its ETag of 6"),
    ],
)
def test_the_reason_for_a_missing_checksum_is_reported(answer: dict[str, str], reason: str) -> None:
    digest = digest_in_head(answer, 9)
    assert isinstance(digest, NoDigest)
    assert reason in digest.reason


def composite() -> Composite:
    found = digest_in_head({"ChecksumCRC32C": f"{CRC32C}-2"}, 18)
    assert isinstance(found, Composite)
    return found


def part(size: int, value: str | None = CRC32C) -> dict[str, Any]:
    return {"Size": size, "ChecksumCRC32C": value}


def test_parts_with_their_sizes_are_digests() -> None:
    digest = digest_of_parts(composite(), [part(9), part(9)], 18)
    assert digest == ObjectDigest("crc32c", (PartDigest(9, "e3069283"), PartDigest(18, "e3069283")))
    assert _native.crc("crc32c", b"123456789") == 0xE3069283


@each_row(
    "parts",
    [
        [],
        [part(9)],
        [part(9), part(8)],
        [part(9), part(9), part(9)],
        [part(18)],
        [part(9), part(9, None)],
        [part(9), part(9, "!")],
        [part(9), part(0), part(9)],
    ],
)
def test_parts_that_do_not_cover_the_object_are_none(parts: list[dict[str, Any]]) -> None:
    assert isinstance(digest_of_parts(composite(), parts, 18), NoDigest)
