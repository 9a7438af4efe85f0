"""Divides tensors into shards and writes their index; names and contents are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from streamer.core.errors import OptionError
from streamer.core.format.header_writer import TensorLayout
from streamer.core.format.shard_names import USUAL_SHARD
from streamer.core.options.switches_and_sizes import parsed_bytes

__all__ = ["divided", "index_text", "most_shard_bytes", "shard_names"]


def most_shard_bytes(value: int | str) -> int:
    """Parse the maximum size of a shard: a number of bytes, or a text with a unit such as ``"5GB"`` (5 * 10^9)."""
    size_bytes = parsed_bytes(value) if isinstance(value, str) else value
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        hint = 'Write a number, or one with a unit: "5GB", "512MiB"'
        raise OptionError(f"max_shard_bytes is not a number of bytes: {str(value)[:80]!r}", hint=hint)
    return size_bytes


def divided(tensors: Sequence[TensorLayout], most_bytes: int) -> list[list[TensorLayout]]:
    """Divide tensors into shards, in order; a tensor that is larger than `most_bytes` gets a shard of its own.

    Example:
        >>> tensors = [TensorLayout(str(size), "U8", (size,), size) for size in (2, 2, 9, 1)]
        >>> [[each.size_bytes for each in shard] for shard in divided(tensors, 4)]
        [[9], [2, 2], [1]]
    """
    shards: list[list[TensorLayout]] = []
    current: list[TensorLayout] = []
    current_bytes = 0
    for each in tensors:
        if each.size_bytes > most_bytes:
            shards.append([each])
            continue
        if current and current_bytes + each.size_bytes > most_bytes:
            shards.append(current)
            current, current_bytes = [], 0
        current.append(each)
        current_bytes += each.size_bytes
    return [*shards, current] if current or not shards else shards


def shard_names(count: int, *, has_index: bool, save_id: str = "") -> list[str]:
    """Return the file names of the shards of a checkpoint.

    Example:
        >>> shard_names(1, has_index=False), shard_names(2, has_index=True)[1]
        (['model.safetensors'], 'model-00002-of-00002.safetensors')
    """
    if not has_index:
        return [USUAL_SHARD]
    stem = f"model-{save_id}" if save_id else "model"
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index_text(shards: Mapping[str, Sequence[TensorLayout]]) -> bytes:
    """Return the text of the index.

    Example:
        >>> index_text({"a.safetensors": [TensorLayout("w", "U8", (2,), 2)]}).splitlines()[2]
        b'    "total_size": 2'
    """
    weight_map = {each.name: shard for shard, tensors in shards.items() for each in tensors}
    total_size = sum(each.size_bytes for tensors in shards.values() for each in tensors)
    document = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
