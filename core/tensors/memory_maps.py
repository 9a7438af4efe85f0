"""Finds the memory of this process that the kernel maps read-only: a write to it would kill the process.

torch does not report it: a tensor over a file that is mapped read-only looks like any other. Guarantees: nothing is
refused if `/proc/self/maps` cannot be read.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

__all__ = ["ReadOnlyMemory"]

MAPS = Path("/proc/self/maps")  # proc_pid_maps(5): "begin-end perms …", in the order of addresses


class ReadOnlyMemory:
    """The read-only mappings of this process at the moment of construction."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for line in _lines():
            addresses, permissions = line.split(maxsplit=2)[:2]
            if b"w" not in permissions:
                begin, _, end = addresses.partition(b"-")
                self._begins.append(int(begin, 16))
                self._ends.append(int(end, 16))

    def holds_part_of(self, begin: int, end: int) -> bool:
        """Say whether any of these bytes is read-only; the last read-only mapping that begins before `end` decides."""
        before = bisect_left(self._begins, end)
        return before > 0 and self._ends[before - 1] > begin


def _lines() -> list[bytes]:
    try:
        return MAPS.read_bytes().splitlines()
    except OSError:
        return []
