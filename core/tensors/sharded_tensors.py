"""DTensors, of which each process holds a part: finds the local part, and makes a DTensor of a loaded part.

Refuses placements whose local part is not one block of the whole tensor (partial sums, interleaved rows). torch itself
reports the block of a part, by the method that its own checkpoints use.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from streamer.core.errors import TargetError
from streamer.core.imported import if_imported


class LocalPart(NamedTuple):
    """The part of a tensor that this process holds."""

    slices: tuple[slice, ...]  # the block of the part: a slice for each dimension of the whole tensor
    local: Any  # the tensor that holds the part


def is_sharded(tensor: Any) -> bool:
    """Say whether this is a DTensor: this process holds a part or a copy of such a tensor."""
    # Not imported here: a caller that has a DTensor has imported it.
    kind = getattr(if_imported("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def part_of(name: str, tensor: Any) -> LocalPart:
    """Return the local part of a DTensor."""
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
    return LocalPart(tuple(slice(int(first), int(first) + int(size)) for first, size in bounds), local)


def like_sharded(old: Any, local: Any) -> Any:
    """Return a DTensor with the local part `local`, placed as `old`, without communication between processes."""
    kind = sys.modules["torch.distributed.tensor"].DTensor
    return kind.from_local(
        local, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride()
    )


def device_type_of(tensor: Any) -> str:
    """Return the kind of device on which the parts of a DTensor lie."""
    return str(tensor.device_mesh.device_type)


def _is_cut_first(tensor: Any, dimension: int) -> bool:
    """Say whether later shards of the same dimension cancel the stride of a strided shard, so that parts are blocks."""
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
