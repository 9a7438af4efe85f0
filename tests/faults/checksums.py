"""What S3 tells of an object's checksums: of the whole, or of the parts of a multipart upload."""

from __future__ import annotations

import base64

from streamer import _native


def headers_of(data: bytes, part_bytes: int | None) -> dict[str, str]:
    """The headers of a HEAD that asks for checksums."""
    if part_bytes is None:  # as an object that was uploaded by one of S3's own programs
        return {"x-amz-checksum-crc64nvme": _value("crc64nvme", data, 8), "x-amz-checksum-type": "FULL_OBJECT"}
    values = [base64.b64decode(_value("crc32c", part, 4)) for part in _parts(data, part_bytes)]
    composite = f"{_value('crc32c', b''.join(values), 4)}-{len(values)}"
    return {"x-amz-checksum-crc32c": composite, "x-amz-checksum-type": "COMPOSITE"}


def attributes_of(data: bytes, part_bytes: int, after: int, page: int = 3) -> bytes:
    """The answer of GetObjectAttributes with the parts behind number `after`, a page of them."""
    parts = list(enumerate(_parts(data, part_bytes), start=1))
    shown = parts[after : after + page]
    is_cut = after + page < len(parts)
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><Size>{len(part)}</Size>"
        f"<ChecksumCRC32C>{_value('crc32c', part, 4)}</ChecksumCRC32C></Part>"
        for number, part in shown
    )
    text = (
        f"<GetObjectAttributesResponse><ObjectParts><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        f"<MaxParts>{page}</MaxParts><NextPartNumberMarker>{after + len(shown)}</NextPartNumberMarker>"
        f"<PartNumberMarker>{after}</PartNumberMarker>{listed}<PartsCount>{len(parts)}</PartsCount></ObjectParts>"
        "</GetObjectAttributesResponse>"
    )
    return text.encode()


def _parts(data: bytes, part_bytes: int) -> list[bytes]:
    return [data[begin : begin + part_bytes] for begin in range(0, len(data), part_bytes)]


def _value(algorithm: str, data: bytes, size: int) -> str:
    return base64.b64encode(_native.crc(algorithm, data).to_bytes(size, "big")).decode()
