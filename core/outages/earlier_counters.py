"""Counters of one load before it begins to read tensors: while it locates the checkpoint and reads its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

__all__ = ["EarlierCounters"]

# The engine's counters that add up over the stages of a load.
_SUMMED = ("http_requests", "retries", "hedges", "credential_refreshes", "outages", "waited_us", "probes")


class EarlierCounters:
    """The sums of one load."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, stats: Mapping[str, int]) -> None:
        """Add the counters of a session, or of the lookup before it, which only has some of them."""
        self._sums.update({name: stats[name] for name in _SUMMED if name in stats})

    def added_to(self, stats: Mapping[str, int]) -> dict[str, int]:
        """Return the counters of the session that reads the tensors, with the earlier counters added.

        Example:
            >>> earlier = EarlierCounters()
            >>> earlier.add({"http_requests": 2, "items_delivered": 2})
            >>> earlier.added_to({"http_requests": 3, "items_delivered": 7})
            {'http_requests': 5, 'items_delivered': 7}
        """
        return {**stats, **{name: stats[name] + self._sums[name] for name in _SUMMED if name in stats}}
