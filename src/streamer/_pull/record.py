"""The record of the files that a pull has put into a folder: ``.streamer-pull/complete.json``. Pure.

If a record cannot be parsed, the files are pulled again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streamer._pull.names import is_safe
from streamer.core.format import strict_json

__all__ = ["PulledFile", "PulledFolder", "parse_record", "render_record"]

FORMAT = 1


@dataclass(frozen=True)
class PulledFile:
    """One file of a record.

    Attributes:
        size_bytes: Its size.
        version: The version that its storage reported, or None.
        crc32c: The CRC-32C of its bytes, in hexadecimal digits.
        digest: The hash that its storage keeps, as ``sha256:…``, or None.
        verified_by: The algorithm of the storage's digest that it was compared with, or None.
    """

    size_bytes: int
    version: str | None
    crc32c: str
    digest: str | None = None
    verified_by: str | None = None


@dataclass(frozen=True)
class PulledFolder:
    """All files of a pull, by their relative names.

    Attributes:
        uri: The URI from which they were pulled, without secrets.
        files: The files, by name.
    """

    uri: str
    files: Mapping[str, PulledFile]


def render_record(record: PulledFolder) -> bytes:
    """Return a record as JSON."""
    files = {name: asdict(each) for name, each in sorted(record.files.items())}
    return json.dumps({"format": FORMAT, "uri": record.uri, "files": files}, indent=1).encode()


def parse_record(content: bytes) -> PulledFolder | None:
    """Parse a record; return None if it has another format, or names files outside of the folder.

    Example:
        >>> parse_record(render_record(PulledFolder("s3://b/m", {"a": PulledFile(3, None, "0a")}))).files
        {'a': PulledFile(size_bytes=3, version=None, crc32c='0a', digest=None, verified_by=None)}
        >>> parse_record(b"{}")
    """
    try:
        document = json.loads(strict_json.decode_utf8(content))
        files = {name: _file_of(each) for name, each in document["files"].items()}
        uri = document["uri"]
        is_ours = document["format"] == FORMAT and isinstance(uri, str) and all(map(is_safe, files))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return PulledFolder(uri, files) if is_ours else None


def _file_of(entry: dict[str, Any]) -> PulledFile:
    found = PulledFile(**entry)
    texts = (found.version, found.digest, found.verified_by)
    if type(found.size_bytes) is not int or not isinstance(found.crc32c, str):
        raise TypeError
    if not all(each is None or isinstance(each, str) for each in texts):
        raise TypeError
    return found
