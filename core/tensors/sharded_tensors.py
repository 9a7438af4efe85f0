"""DTensors, of which each process holds a part: which part is here, and how a loaded one becomes such a tensor.

Refuses placements of which the part here is no block of the whole tensor (partial sums, rows that are dealt out). What
a part is, torch says itself, as it does to its own checkpoints.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from streamer.core.errors import TargetError

__all__ = ["Part", "device_type_of", "is_sharded", "like_sharded", "part_of"]


class Part(NamedTuple):
    """What this process holds of a tensor.

    Attributes:
        slices: The elements that are here: a slice for each dimension of the whole tensor.
        local: The tensor they are in.
    """

    slices: tuple[slice, ...]
    local: Any


def is_sharded(tensor: Any) -> bool:
    """Whether this is a DTensor: a tensor of which this process holds a part, or a copy."""
    # Not imported here: nobody has a DTensor who has not imported it.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def part_of(name: str, tensor: Any) -> Part:
    """Find the part of a DTensor that is here.

    Raises:
        TargetError: it is no block of the whole tensor, or this process is none of those that share it.
    """
    if tensor.device_mesh.get_coordinate() is None:
        raise _refused(name, "is shared by other processes than this one", "Leave it out with names=")
    for dimension, placement in enumerate(tensor.placements):
        if not (placement.is_replicate() or placement.is_shard() or _is_cut_first(tensor, dimension)):
            raise _refused(name, f"is placed as {placement}", "Redistribute it: Shard and Replicate can be filled")
    torch = sys.modules["torch"]
    with torch.no_grad():
        local = tensor.to_local()
    (chunk,) = tensor.__create_chunk_list__()
    if tuple(chunk.sizes) != tuple(local.shape):
        raise _refused(name, f"holds {list(local.shape)} here, where its placements say {list(chunk.sizes)}", None)
    bounds = zip(chunk.offsets, chunk.sizes, strict=True)
    return Part(tuple(slice(int(first), int(first) + int(size)) for first, size in bounds), local)


def like_sharded(old: Any, local: Any) -> Any:
    """Make the DTensor of which `local` is the part here, placed as an old one; no process asks another."""
    kind = sys.modules["torch.distributed.tensor"].DTensor
    return kind.from_local(
        local, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride()
    )


def device_type_of(tensor: Any) -> str:
    """Say on which kind of device the parts of a DTensor lie."""
    return str(tensor.device_mesh.device_type)


def _is_cut_first(tensor: Any, dimension: int) -> bool:
    """Whether a strided placement leaves blocks, as later ones shard what it strides over: FSDP2 over other shards."""
    placement = tensor.placements[dimension]
    strides_over = getattr(placement, "split_factor", None)
    if strides_over is None:
        return False
    for other in range(dimension + 1, len(tensor.placements)):
        if tensor.placements[other].is_shard(placement.dim):
            strides_over /= tensor.device_mesh.size(other)
    return bool(strides_over == 1)


def _refused(name: str, reason: str, hint: str | None) -> TargetError:
    return TargetError(f"the target of tensor {name[:80]!r} is a DTensor that {reason}", hint=hint)
