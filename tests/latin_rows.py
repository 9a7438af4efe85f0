"""Rows of a table that would be too long as a full product: each pair of two axes once, while the others take turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def latin_rows(first: Iterable[Any], second: Iterable[Any], *others: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return each pair of the first two axes with one value of each other axis, as in a Latin square.

    Example:
        >>> latin_rows("ab", "xy", [1, 2])
        [('a', 'x', 1), ('a', 'y', 2), ('b', 'x', 2), ('b', 'y', 1)]
    """
    turns = [list(each) for each in others]
    return [
        (one, two, *(values[(i + (step + 1) * j) % len(values)] for step, values in enumerate(turns)))
        for i, one in enumerate(first)
        for j, two in enumerate(second)
    ]
