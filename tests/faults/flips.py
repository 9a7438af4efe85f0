"""Scripts of a fault server that flip a byte of the weights: in one answer, or in every one."""

from __future__ import annotations

from faults.catalogue import FAULTS, Fault
from faults.server import Asked, Script

FLIP = FAULTS["flipped_byte"]
BEHIND_HEADERS = 1 << 20


def flips_once() -> Script:
    """One answer with weights, and no other."""
    flipped: list[int] = []

    def script(asked: Asked) -> Fault | None:
        if asked.begin >= BEHIND_HEADERS and not flipped:
            flipped.append(asked.number)
            return FLIP
        return None

    return script


def flips_always(asked: Asked) -> Fault | None:
    """Every answer with the weights behind the first MiB."""
    return FLIP if asked.begin >= BEHIND_HEADERS else None
