"""What one load waited for, counted step by step: while the checkpoint is looked for, and while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OutageMeter"]


@dataclass
class OutageMeter:
    """Adds up.

    Attributes:
        outages: As in `streamer.LoadReport`, like the others.
        waited_s: Seconds.
        probes: Requests.
    """

    outages: int = 0
    waited_s: float = 0.0
    probes: int = 0

    def add(self, stats: Mapping[str, int]) -> None:
        """Add what the counters of a session say, or of the lookup before it."""
        self.outages += stats["outages"]
        self.waited_s += stats["waited_us"] / 1e6
        self.probes += stats["probes"]
