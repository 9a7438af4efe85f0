"""What a load did, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["LoadReport"]


@dataclass(frozen=True)
class LoadReport:
    """Measured by the load itself.

    Attributes:
        uri: What was loaded, without secrets.
        tensors: Tensors delivered.
        bytes: Bytes of these tensors.
        bytes_read: Bytes asked of the storage for them, dropped gaps included, headers not.
        seconds: From the call to the last tensor.
        requests: Ranged GETs sent, retries included; 0 where no HTTP was spoken.
        retries: Blocks that were tried again.
        hedges: Duplicate requests sent against slow ones.
        credential_refreshes: Times an expiring signature was renewed.
        peak_held_bytes: Most bytes read, or being read, and not yet handed over.
        stages: Seconds spent in ``locate`` (listing), ``headers`` and ``read``.
        is_complete: Every tensor asked for was delivered.
    """

    uri: str
    tensors: int = 0
    bytes: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    credential_refreshes: int = 0
    peak_held_bytes: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def gb_per_s(self) -> float:
        """Bytes delivered per second of the whole call, in GB (10^9) per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give all fields, and ``gb_per_s``, as plain values for JSON."""
        return {**asdict(self), "stages": dict(self.stages), "gb_per_s": self.gb_per_s}

    def __str__(self) -> str:
        rate = f"{self.bytes / 1e9:.3f} GB in {self.seconds:.2f} s, {self.gb_per_s:.2f} GB/s"
        return f"{self.uri}: {self.tensors} tensors, {rate}"
