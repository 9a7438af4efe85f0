"""A glance into a folder: of no use to a load, but to the message that nothing was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Protocol, runtime_checkable

from streamer.core.quoting import printable, quoted

__all__ = ["SHARD_SUFFIX", "SHOWN_CHARACTERS", "GlancingStore", "enumerated", "folders_among", "near_names"]

LONGEST_COMPARED = 300  # characters: difflib is quadratic in the length
MOST_COMPARED = 1000  # names: an error must not take seconds
SHOWN_NAMES = 5
SHOWN_CHARACTERS = 60
SHARD_SUFFIX = ".safetensors"


@runtime_checkable
class GlancingStore(Protocol):
    """A `Store` that can name what is in a folder, sub-folders too."""

    def glance(self, prefix: str) -> list[str]:
        """Name some files and folders directly in a folder, as many as one request gives; folders end in a slash.

        Called only for the message that there is no checkpoint; whatever it raises is ignored.
        """


def folders_among(names: Iterable[str]) -> list[str]:
    """Pick the folders among listed names, whose names end in a slash.

    Example:
        >>> folders_among(["vae/", "config.json", "unet/"])
        ['unet', 'vae']
    """
    return sorted({name[:-1] for name in names if name.endswith("/")})


def near_names(name: str, names: Sequence[str]) -> str:
    """Say which names are near to one that is not among them, or else which are of shards; empty where none are.

    Example:
        >>> near_names("lama", ["llama/", "opt/"])
        "Near: 'llama'"
        >>> near_names("model-1.safetensors", ["weights.safetensors", "config.json"])
        'The folder holds weights.safetensors'
    """
    # All shards look alike by their suffix.
    stems = {each.rstrip("/").removesuffix(SHARD_SUFFIX): each.rstrip("/") for each in reversed(names[:MOST_COMPARED])}
    wanted = name.removesuffix(SHARD_SUFFIX)
    near = get_close_matches(wanted, stems, n=3) if len(wanted) <= LONGEST_COMPARED else []
    if near:
        return f"Near: {', '.join(quoted(stems[each]) for each in near)}"
    shards = [each for each in names if each.endswith(SHARD_SUFFIX)]
    return f"The folder holds {enumerated(shards)}" if shards else ""


def enumerated(names: Sequence[str]) -> str:
    """Join the first names to a text for a message."""
    shown = [printable(name[:SHOWN_CHARACTERS]) for name in names[:SHOWN_NAMES]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else "")
