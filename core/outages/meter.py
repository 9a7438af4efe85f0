"""How much one load waited for servers, added up over its stages: finding the checkpoint, and reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OutageMeter"]


@dataclass
class OutageMeter:
    """The sums of one load.

    Attributes:
        outages: As in `streamer.LoadReport`, like the others.
        waited_s: Seconds.
        probes: Requests.
    """

    outages: int = 0
    waited_s: float = 0.0
    probes: int = 0

    def add(self, stats: Mapping[str, int]) -> None:
        """Add the counters of a session, or of the lookup before it."""
        self.outages += stats["outages"]
        self.waited_s += stats["waited_us"] / 1e6
        self.probes += stats["probes"]
