"""What a save did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SaveReport"]


@dataclass(frozen=True)
class SaveReport:
    """The result of `streamer.save`.

    Attributes:
        uri: Where the checkpoint is, without secrets.
        files: Names of the files that were written, the one that makes it complete last.
        tensors: Number of tensors.
        bytes: Bytes of these files.
        seconds: Duration of the call.
        not_removed: Files of an older checkpoint that could not be removed; the new one does not name them.
        kept_bytes: Those of `bytes` that a save which ended early had sent; with ``resume=True``.
    """

    uri: str
    files: tuple[str, ...]
    tensors: int
    bytes: int
    seconds: float
    not_removed: tuple[str, ...] = ()
    kept_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
