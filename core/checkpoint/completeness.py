"""Checks whether a checkpoint is complete, by the names in its folder: the names in an index, and numbered series."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from streamer.core.errors import MissingShardError
from streamer.core.format.shard_names import incomplete_series, second_copies
from streamer.core.log import OwnLogger
from streamer.core.quoting import names_text, printable

__all__ = ["check_whole", "missing_shard", "unfinished", "without_second_copies"]

_UNFINISHED = re.compile(r"\.safetensors\.(aria2|crdownload|download|incomplete|part|partial|tmp)\Z")

_log = OwnLogger()


def check_whole(names: Sequence[str], label: str, *, is_allowed: bool = False) -> tuple[str, ...]:
    """Check that no shard is missing from a folder without an index, by the numbers in the names.

    Args:
        names: Names of the shards.
        label: The folder, without secrets.
        is_allowed: Whether shards may be missing.

    Returns:
        A remark for each series that is incomplete.

    Raises:
        MissingShardError: a shard is missing.
    """
    remarks = tuple(f"the folder holds {each}" for each in incomplete_series(names))
    if remarks and not is_allowed:
        raise MissingShardError(
            f"{remarks[0]}, and no index",
            uri=label,
            hint="Fetch what is missing, or take the rest with Options(allow_missing_shards=True)",
        )
    for remark in remarks:
        _log.warning("%s: %s, which allow_missing_shards permits", printable(label), printable(remark))
    return remarks


def without_second_copies(names: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Drop shards that hold a second copy of the model; return the others, and a remark for each dropped shard."""
    again = second_copies(names)
    remarks = tuple(f"{name} holds the same model once more, and was left out: name it to load it" for name in again)
    return [name for name in names if name not in again], remarks


def missing_shard(shard: str, index_uri: str) -> MissingShardError:
    """Return the error for a shard that an index names and that does not exist."""
    return MissingShardError(
        f"the index names shard {shard[:80]!r}, which does not exist",
        uri=index_uri,
        hint="Fetch it; a pattern (folder/*.safetensors) loads those that are there",
    )


def unnamed(names: Sequence[str], shards: Collection[str], suffixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return a remark if weights lie beside an index that does not name them: they may be what the user means.

    Args:
        names: Names of the files beside the index.
        shards: Names of the shards that it names.
        suffixes: Suffixes of such shards.
    """
    others = [name for name in names if name.endswith(suffixes) and name not in shards]
    others = [name for name in others if name not in second_copies([*others, *shards])]
    if not others:
        return ()
    return (f"the index does not name {names_text(others, 3)}: left out; name the file to load it",)


def unfinished(names: Sequence[str], label: str) -> tuple[str, ...]:
    """Return a remark if unfinished downloads lie beside the shards: a shard may be missing."""
    begun = sorted(name for name in names if _UNFINISHED.search(name))
    if not begun:
        return ()
    remark = f"a download left {begun[0]} unfinished" + (f", and {len(begun) - 1} more" if begun[1:] else "")
    _log.warning("%s: %s", printable(label), printable(remark))
    return (remark,)
