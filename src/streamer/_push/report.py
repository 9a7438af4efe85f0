"""What a push did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PushReport"]


@dataclass(frozen=True)
class PushReport:
    """What a push, or a copy between storages, did.

    Attributes:
        source: Where the files come from, without secrets.
        uri: Where they are, without secrets.
        files: Number of files that are there now.
        bytes: Their bytes.
        sent_bytes: Bytes that were sent.
        kept_files: Files that were there already.
        verified_files: Files that were sent, and compared with a digest that the storage they come from keeps.
        seconds: Duration.
    """

    source: str
    uri: str
    files: int
    bytes: int
    sent_bytes: int
    kept_files: int
    verified_files: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
