"""The order in which the files of a folder show up. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamer.core.format.shard_names import SHARD_SUFFIX
from streamer.core.shards.other_weights import OTHER_WEIGHTS, is_index, is_manifest


def last_of(missing: Sequence[str]) -> list[str]:
    """Return those of the missing files, in their order, that show up after all others: what completes a checkpoint.

    Example:
        >>> last_of(["model-00001-of-00002.safetensors", "model.safetensors.index.json"])
        ['model.safetensors.index.json']
        >>> last_of(["a.json", "model.safetensors"])
        ['model.safetensors']
    """
    return [name for name in missing if is_index(name) or is_manifest(name)] or list(missing[-1:])


def turn(names: Collection[str], name: str) -> tuple[int, str]:
    """Return the sort key of a file; in this order, readers find a checkpoint only when it is whole.

    Manifests come right before the file that makes their checkpoint whole.

    The index comes last. If there is no index, the weights come after all other files, those of safetensors last: a
    folder that has them is loaded from them, and its ``.bin`` files may be anything (accelerate's ``scheduler.bin``).

    Example:
        >>> names = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "z.txt"]
        >>> sorted(names, key=lambda name: turn(names, name))[-1]
        'model.safetensors.index.json'
        >>> turn(["model.safetensors"], "model.safetensors") > turn(["model.safetensors"], "z.txt")
        True
        >>> turn(["model.safetensors", "scheduler.bin"], "model.safetensors") > turn(["scheduler.bin"], "scheduler.bin")
        True
        >>> sorted(["z.txt", ".metadata", "__0_0.distcp"], key=lambda name: turn(names, name))[-1]
        '.metadata'
    """
    folder = name[: len(name) - len(name.rpartition("/")[2])]
    has_index = any(each.startswith(folder) and is_index(each) for each in names)
    if is_index(name):
        return 4, name
    if is_manifest(name):
        return 2, name
    if has_index:
        return 0, name
    return 3 if name.endswith(SHARD_SUFFIX) else 1 if name.endswith(OTHER_WEIGHTS) else 0, name
