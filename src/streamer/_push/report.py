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
        uri: Where the files were copied to, without secrets.
        files: Number of wanted files that the target has now.
        bytes: Bytes of these files.
        sent_bytes: Bytes that were sent.
        kept_files: Files that the target had already.
        verified_files: Files that were sent, and compared with a digest that the source's storage keeps.
        seconds: Duration.
        authenticated_files: Number of encrypted files of which every byte was authenticated.
        removed: Files of an older checkpoint that were removed.
    """

    source: str
    uri: str
    files: int
    bytes: int
    sent_bytes: int
    kept_files: int
    verified_files: int
    seconds: float
    authenticated_files: int = 0
    removed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
