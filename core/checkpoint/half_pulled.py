"""Refuses a folder that ``python -m streamer pull`` has not finished: shards may be missing."""

from __future__ import annotations

from collections.abc import Iterable

from streamer.core.errors import ObjectNotFoundError
from streamer.core.store.sources import ObjectInfo

__all__ = ["INCOMPLETE", "refuse_half_pulled"]

INCOMPLETE = ".streamer-pull-incomplete"  # a file directly in the folder, so that every storage lists it


def refuse_half_pulled(infos: Iterable[ObjectInfo], label: str) -> None:
    """Check that a folder does not hold the mark of an unfinished pull.

    Args:
        infos: The files directly in the folder.
        label: The URI without secrets.

    Raises:
        ObjectNotFoundError: the folder holds the mark.
    """
    if any(info.path.rpartition("/")[2] == INCOMPLETE for info in infos):
        raise ObjectNotFoundError(
            "the folder is half pulled: not all of its files are here",
            uri=label,
            hint="Run python -m streamer pull again with the same URI: it goes on where it stopped",
        )
