"""The request and the report of a pull."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streamer.core.options.options import Options

__all__ = ["PullReport", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What to pull, and how.

    Attributes:
        include: Patterns; empty: every file.
        exclude: Patterns of files that are left out.
        largest_bytes: Larger files are left out, with a warning; None: no file is too large.
        is_verified: Files are compared with the digests that their storage keeps.
        is_checked: Files that are already in the folder are read, and compared with the record.
        storage_options: As for `streamer.load`.
        options: As for `streamer.load`.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    largest_bytes: int | None = None
    is_verified: bool = True
    is_checked: bool = False
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    options: Options | None = None


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
        removed: Files of an earlier pull that the storage no longer has.
        seconds: Duration.
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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
