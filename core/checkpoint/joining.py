"""Joins the checkpoints of several URIs into one."""

from __future__ import annotations

from streamer.core.checkpoint.shard_choice import duplicate_tensor
from streamer.core.checkpoint.shards import Shards
from streamer.core.engine.session import SourceObject
from streamer.core.errors import FormatError

__all__ = ["joined"]


def joined(parts: list[Shards]) -> Shards:
    """Join several checkpoints into one, in the order of `parts`.

    Raises:
        FormatError: the indexes of two of them name the same tensor, or they are of different formats.
    """
    if len(parts) == 1:
        return parts[0]
    objects: list[SourceObject] = []
    shard_of: dict[str, int] = {}
    for part in parts:
        for name, shard in (part.shard_of or {}).items():
            if name in shard_of:
                raise duplicate_tensor(name, objects[shard_of[name]].uri, part.objects[shard].uri)
            shard_of[name] = len(objects) + shard
        objects.extend(part.objects)
    infos = [info for part in parts for info in part.infos]
    expected = [each for part in parts for each in part.expected]
    label = f"{parts[0].label} and {len(parts) - 1} more"
    remarks = tuple(remark for part in parts for remark in part.remarks)
    formats = {part.format and part.format.name: part.format for part in parts}
    if len(formats) > 1:
        names = " and ".join(sorted(name or "safetensors" for name in formats))
        raise FormatError(
            f"these are checkpoints of {names}", uri=label, hint="Load the checkpoints of each format separately"
        )
    numbers = [number for number, part in enumerate(parts) for _ in part.objects]
    return Shards(
        label,
        objects,
        shard_of or None,
        infos,
        kind="list",
        expected=expected,
        remarks=remarks,
        checkpoint_of=numbers,
        format=parts[0].format,
    )
