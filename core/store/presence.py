"""Looks up whether a store has an object, and finds similar names for the error about a missing checkpoint.

Absence is an answer here, and not an error. A load itself does not need the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Protocol, runtime_checkable

from streamer.core.errors import ObjectNotFoundError
from streamer.core.quoting import printable, quoted
from streamer.core.store.sources import ObjectInfo, Store

LONGEST_COMPARED = 300  # characters: difflib is quadratic in the length
MOST_COMPARED = 1000  # names: an error must not take seconds
SHOWN_NAMES = 5
SHOWN_CHARACTERS = 60
SHARD_SUFFIX = ".safetensors"


def info_if_present(store: Store, path: str) -> ObjectInfo | None:
    """Describe one object; None if there is no such object."""
    try:
        return store.info(path)
    except ObjectNotFoundError:
        return None


@runtime_checkable
class PeekingStore(Protocol):
    """A `Store` that can name the files and sub-folders of a folder."""

    def peek(self, prefix: str) -> list[str]:
        """Return names of files and folders directly in a folder, as many as one request gives; folders end in a slash.

        Called only for the error that there is no checkpoint; its exceptions are ignored.
        """


def folders_among(names: Iterable[str]) -> list[str]:
    """Return the folders among listed names; names of folders end in a slash.

    Example:
        >>> folders_among(["vae/", "config.json", "unet/"])
        ['unet', 'vae']
    """
    return sorted({name[:-1] for name in names if name.endswith("/")})


def near_names(name: str, names: Sequence[str]) -> str:
    """Say which names are similar to a missing name, or else which names are shards; empty if there are neither.

    Example:
        >>> near_names("lama", ["llama/", "opt/"])
        "Near: 'llama'"
        >>> near_names("model-1.safetensors", ["weights.safetensors", "config.json"])
        'The folder holds weights.safetensors'
    """
    # The suffix is removed, because it would make all shards similar.
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
