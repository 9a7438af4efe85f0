"""The request of a pull, the record of its files (``.streamer-pull/complete.json``), and its report. Pure.

If a record cannot be parsed, the files are pulled again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streamer._pull.listing import is_safe
from streamer.core.encryption.keys import KeyOption
from streamer.core.format import strict_json
from streamer.core.options.options import Options

FORMAT = 1


@dataclass(frozen=True)
class PulledFile:
    """One file of a record."""

    size_bytes: int
    version: str | None  # the version that its storage reported, or None
    crc32c: str  # the CRC-32C of its bytes, in hexadecimal digits
    digest: str | None = None  # the hash that its storage keeps, as ``sha256:…``, or None
    verified_by: str | None = None  # the algorithm of the storage's digest that it was compared with, or None
    # The time of the last change of the file on the disk, as it was pulled; None if it is not known.
    changed_ns: int | None = None


@dataclass(frozen=True)
class PulledFolder:
    """All files of a pull, by their relative names."""

    uri: str  # the URI from which they were pulled, without secrets
    files: Mapping[str, PulledFile]  # the files, by name
    seal: str = ""  # `seal_of` the identity of the place that the URI named, with its query and its login


def render_record(record: PulledFolder) -> bytes:
    """Return a record as JSON."""
    files = {name: asdict(each) for name, each in sorted(record.files.items())}
    return json.dumps({"format": FORMAT, "uri": record.uri, "seal": record.seal, "files": files}, indent=1).encode()


def parse_record(content: bytes) -> PulledFolder | None:
    """Parse a record; return None if it has another format, or names files outside of the folder.

    Example:
        >>> parse_record(render_record(PulledFolder("s3://b/m", {"a": PulledFile(3, None, "0a")}))).files
        {'a': PulledFile(size_bytes=3, version=None, crc32c='0a', digest=None, verified_by=None, changed_ns=None)}
        >>> parse_record(b"{}")
    """
    try:
        document = json.loads(strict_json.decode_utf8(content))
        files = {name: _file_of(each) for name, each in document["files"].items()}
        uri, seal = document["uri"], document.get("seal", "")
        is_ours = document["format"] == FORMAT and isinstance(uri, str) and all(map(is_safe, files))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return PulledFolder(uri, files, str(seal)) if is_ours else None


def _file_of(entry: dict[str, Any]) -> PulledFile:
    found = PulledFile(**entry)
    texts = (found.version, found.digest, found.verified_by)
    if type(found.size_bytes) is not int or not isinstance(found.crc32c, str):
        raise TypeError
    if not all(each is None or isinstance(each, str) for each in texts):
        raise TypeError
    return found


@dataclass(frozen=True)
class PullArguments:
    """What to pull, and how."""

    include: Sequence[str] = ()  # patterns of wanted files; if it is empty, all files are wanted
    exclude: Sequence[str] = ()  # patterns of files that are left out
    largest_bytes: int | None = None  # larger files are left out, with a warning; None: no file is too large
    is_verified: bool = True  # files are compared with the digests that their storage keeps
    is_checked: bool = False  # files that are already in the folder are read, and compared with the record
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    options: Options | None = None
    # As for `streamer.load`; every file that may hold tensors is authenticated.
    key: KeyOption = field(default=None, repr=False)
    context: str | None = None
    # Weights of an older checkpoint are removed when the new files are there; otherwise they are refused.
    replaces: bool = False
    is_part: bool = False  # others copy the other files at the same time, so a push does not look at those


@dataclass(frozen=True)
class PullReport:
    """The result of a pull."""

    uri: str  # the URI from which the files were pulled, without secrets
    folder: str  # the folder on the disk
    files: int  # number of files that are in the folder now
    bytes: int  # bytes of these files
    read_bytes: int  # bytes that were read from the storage
    kept_files: int  # number of files that were already in the folder
    verified_files: int  # number of files that were compared with a digest of their storage, now or earlier
    # Files of an earlier pull that the storage no longer has or has replaced, and of an older checkpoint.
    removed: tuple[str, ...]
    seconds: float  # duration
    authenticated_files: int = 0  # number of encrypted files of which every byte was authenticated
    # Those of them that the storage has in another version, which the patterns leave out.
    replaced: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class CopyPlan:
    """What a pull, push or copy would do."""

    source: str  # the URI from which files would be copied, without secrets
    target: str  # the folder or URI to which they would be copied, without secrets
    copied: Mapping[str, int]  # the files that would be copied, by name, with their sizes in bytes
    kept_files: int  # number of files that are there already
    removed: tuple[str, ...]  # files that would be removed

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return {**asdict(self), "dry_run": True}
