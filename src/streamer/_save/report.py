"""What a save did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streamer.core.quoting import counted, printable, size_text

__all__ = ["SaveReport"]


@dataclass(frozen=True)
class SaveReport:
    """The result of `streamer.save`.

    Attributes:
        uri: Where the checkpoint is, without secrets.
        files: Names of the written files; the last file makes the checkpoint complete.
        tensors: Number of tensors.
        bytes: Bytes of these files.
        seconds: Duration of the call.
        not_removed: Files of an older checkpoint that could not be removed; the new checkpoint does not name them.
        kept_bytes: The part of `bytes` that an earlier save, which ended early, had sent; with ``resume=True``.
        remarks: What the tensors had beside their values, and the checkpoint has not.
    """

    uri: str
    files: tuple[str, ...]
    tensors: int
    bytes: int
    seconds: float
    not_removed: tuple[str, ...] = ()
    kept_bytes: int = 0
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f", {size_text(self.kept_bytes)} of it was there" if self.kept_bytes else ""
        speed = size_text(round(self.bytes / max(self.seconds, 1e-9)))
        rate = f"{size_text(self.bytes)} in {self.seconds:.2f} s, {speed}/s"
        left = f"; note: could not remove {', '.join(map(printable, self.not_removed))}" if self.not_removed else ""
        notes = "".join(f"; note: {printable(each)}" for each in self.remarks)
        return f"{printable(self.uri)}: {counted(self.tensors, 'tensor')}, {rate}{kept}{left}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return asdict(self)
