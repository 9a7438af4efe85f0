"""How many shards a checkpoint has, by their names: ``model-00001-of-00002.safetensors`` is one of two.

Without an index only these names distinguish a whole checkpoint from one that an upload, a download or a listing left
incomplete.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["first_missing", "is_of_checkpoint"]

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})-of-([0-9]{1,9})\.safetensors")


_OF_CHECKPOINTS = (".safetensors", ".safetensors.index.json")


def is_of_checkpoint(name: str) -> bool:
    """Whether a file of this name is a shard or an index.

    Example:
        >>> [is_of_checkpoint(name) for name in ("model.safetensors", "config.json")]
        [True, False]
    """
    return name.endswith(_OF_CHECKPOINTS)


def first_missing(names: Iterable[str]) -> tuple[str, int, int] | None:
    """Find a series of numbered shards that is not whole.

    Args:
        names: Of the files of one folder, without it. They may count from 0 or from 1.

    Returns:
        The name of such a series, how many of its shards exist, and how many there should be; None: all are whole.

    Example:
        >>> first_missing(["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"])
        ('model-*-of-00003.safetensors', 2, 3)
    """
    series: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            series[match[1], match[3]].add(int(match[2]))
    for (prefix, total), numbers in sorted(series.items()):
        if len(numbers) < int(total):
            return f"{prefix}*-of-{total}.safetensors", len(numbers), int(total)
    return None
