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

__all__ = ["PullReport", "PulledFile", "PulledFolder", "Wanted", "parse_record", "render_record"]

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
        changed_ns: The time of the last change of the file on the disk, as it was pulled; None if it is not known.
    """

    size_bytes: int
    version: str | None
    crc32c: str
    digest: str | None = None
    verified_by: str | None = None
    changed_ns: int | None = None


@dataclass(frozen=True)
class PulledFolder:
    """All files of a pull, by their relative names.

    Attributes:
        uri: The URI from which they were pulled, without secrets.
        files: The files, by name.
        seal: `seal_of` the identity of the place that the URI named, with its query and its login.
    """

    uri: str
    files: Mapping[str, PulledFile]
    seal: str = ""


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
class Wanted:
    """What to pull, and how.

    Attributes:
        include: Patterns of wanted files; if it is empty, all files are wanted.
        exclude: Patterns of files that are left out.
        largest_bytes: Larger files are left out, with a warning; None: no file is too large.
        is_verified: Files are compared with the digests that their storage keeps.
        is_checked: Files that are already in the folder are read, and compared with the record.
        storage_options: As for `streamer.load`.
        options: As for `streamer.load`.
        key: As for `streamer.load`; every file that may hold tensors is authenticated.
        context: As for `streamer.load`.
        replaces: Weights of an older checkpoint are removed when the new files are there; otherwise they are refused.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    largest_bytes: int | None = None
    is_verified: bool = True
    is_checked: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    options: Options | None = None
    key: KeyOption = field(default=None, repr=False)
    context: str | None = None
    replaces: bool = False


@dataclass(frozen=True)
class PullReport:
    """The result of a pull.

    Attributes:
        uri: The URI from which the files were pulled, without secrets.
        folder: The folder on the disk.
        files: Number of files that are in the folder now.
        bytes: Bytes of these files.
        read_bytes: Bytes that were read from the storage.
        kept_files: Number of files that were already in the folder.
        verified_files: Number of files that were compared with a digest of their storage, now or earlier.
        removed: Files of an earlier pull that the storage no longer has or has replaced, and of an older checkpoint.
        replaced: Those of them that the storage has in another version, which the patterns leave out.
        seconds: Duration.
        authenticated_files: Number of encrypted files of which every byte was authenticated.
    """

    uri: str
    folder: str
    files: int
    bytes: int
    read_bytes: int
    kept_files: int
    verified_files: int
    removed: tuple[str, ...]
    seconds: float
    authenticated_files: int = 0
    replaced: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
