"""Parses numbers of bytes with a unit: ``"1GB"`` is 10^9, ``"512MiB"`` (or Kubernetes' ``"512Mi"``) is 512 * 2^20.

Refuses a small ``b``, which may mean bits, and fractions of a byte.
"""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["parsed_bytes"]

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kKMGT])(i?))?B?(?:/s)?\s*", re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parsed_bytes(text: str) -> int | None:
    """Return the number of bytes; None if the text is not a size.

    Example:
        >>> [parsed_bytes(text) for text in ("4096", "1GB", "512 MiB", "1.5Ki", "2MB/s", "1Gb", "0.1B", "a lot")]
        [4096, 1000000000, 536870912, 1536, 2000000, None, None, None]
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, letter, is_binary = match.groups()
    size = Decimal(number) * (1024 if is_binary else 1000) ** _POWERS[(letter or "").upper()]
    return int(size) if size == int(size) else None
