"""What a push did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PushReport:
    """What a push, or a copy between storages, did."""

    source: str  # URL of the source folder, without secrets
    uri: str  # URL of the target folder, without secrets
    files: int  # number of wanted files that the target has now
    bytes: int  # bytes of these files
    sent_bytes: int  # bytes that were sent
    kept_files: int  # files that the target had already
    verified_files: int  # files that were sent, and compared with a digest that the source's storage keeps
    seconds: float  # duration
    authenticated_files: int = 0  # number of encrypted files of which every byte was authenticated
    removed: tuple[str, ...] = ()  # files of an older checkpoint that were removed

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
