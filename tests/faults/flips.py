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
        if _hits_weights(asked) and not flipped:
            flipped.append(asked.number)
            return FLIP
        return None

    return script


def flips_always(asked: Asked) -> Fault | None:
    """Every answer with the weights behind the first MiB."""
    return FLIP if _hits_weights(asked) else None


def _hits_weights(asked: Asked) -> bool:
    """Whether the byte in the middle, which is flipped, is none of the headers."""
    return (asked.begin + asked.end) // 2 >= BEHIND_HEADERS
