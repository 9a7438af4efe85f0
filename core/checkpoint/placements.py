"""Decides which part of each tensor a rank of a `DeviceMesh` keeps, and makes a DTensor of the part.

Guarantees: the parts, and their sizes, are those of ``torch.distributed.tensor.distribute_tensor``.
Refuses: placements that are no part of a tensor (partial sums), ranks outside of the mesh, and devices of another kind.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from streamer.core.checkpoint.slices import Slice
from streamer.core.errors import UsageError
from streamer.core.quoting import quoted

__all__ = ["Layout", "Placements"]


@dataclass(frozen=True)
class Placements:
    """How tensors are placed on a mesh of devices, for ``slices=`` of `streamer.load`, which then gives DTensors.

    Each rank reads its own part of a tensor from the storage; ranks do not exchange bytes, unless there is a
    ``group=``. The parts are those of ``torch.distributed.tensor.distribute_tensor``: one after the other, each
    ``Shard(dim)`` cuts the rest of the dimension into parts of ``ceil(size / ranks)``.

    Args:
        mesh: A ``torch.distributed.device_mesh.DeviceMesh`` that this rank is in.
        placements: Names or ``fnmatch`` patterns to placements: for each dimension of the mesh a ``Shard(dim)`` or
            ``Replicate()``; None loads a plain tensor. The first pattern that matches a name counts; tensors that no
            pattern matches are plain, too.

    Raises:
        UsageError: the mesh is no DeviceMesh, or this rank is not in it; the number of placements is not that of the
            mesh's dimensions; or a placement is neither a Shard nor a Replicate.

    Example:
        >>> Placements(mesh, {"*_proj.weight": [Shard(0)], "*": [Replicate()]})      # doctest: +SKIP
    """

    mesh: Any
    placements: Mapping[str, Sequence[Any] | None] = field(hash=False)

    def __post_init__(self) -> None:
        kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
        if kind is None or not isinstance(self.mesh, kind):
            hint = "torch.distributed.device_mesh.init_device_mesh makes one"
            raise UsageError(f"mesh of Placements is a DeviceMesh, not {type(self.mesh).__name__}", hint=hint)
        if not isinstance(self.placements, Mapping):
            what = type(self.placements).__name__
            hint = 'For all tensors: {"*": [Shard(0)]}'
            raise UsageError(f"Placements take a mapping of patterns to placements, not {what}", hint=hint)
        if self.mesh.get_coordinate() is None:
            raise UsageError("this rank is not in the mesh of Placements", hint="Load only on the ranks of the mesh")
        vars(self).update(placements={name: self._checked(name, each) for name, each in self.placements.items()})

    def layout(self, name: str, placements: Sequence[Any] | None, shape: tuple[int, ...]) -> Layout | None:
        """Return the layout of a tensor; `shape` is its shape in torch.

        Raises:
            UsageError: the tensor lacks the dimension of a Shard.
        """
        if placements is None:
            return None
        bounds = [[0, size] for size in shape]
        for place, count, placement in zip(self.mesh.get_coordinate(), self.mesh.shape, placements, strict=True):
            if placement.is_shard():
                if not -len(shape) <= placement.dim < len(shape):
                    what = f"its shape {list(shape)} has no dimension {placement.dim}"
                    raise UsageError(f"{placement} does not fit tensor {quoted(name)}: {what}")
                first, end = bounds[placement.dim]
                low, high = Slice(placement.dim, place, count).bounds(end - first)
                bounds[placement.dim] = [first + low, first + high]
        box = tuple(slice(first, end) for first, end in bounds)
        return Layout(self.mesh, tuple(placements), shape, box)

    def _checked(self, name: Any, placements: Any) -> Sequence[Any] | None:
        if not isinstance(name, str):
            raise UsageError(f"Placements must have strings as keys, not {type(name).__name__}")
        if placements is None:
            return None
        hint = f"One Shard(dim) or Replicate() for each of the {self.mesh.ndim} dimensions of the mesh, in a list"
        kind = sys.modules["torch.distributed.tensor"].Placement if "torch.distributed.tensor" in sys.modules else ()
        if not isinstance(placements, (list, tuple)) or not all(isinstance(each, kind) for each in placements):
            raise UsageError(f"the placements for {quoted(name)} are no list of placements", hint=hint)
        if len(placements) != self.mesh.ndim:
            raise UsageError(f"there are {len(placements)} placements for {quoted(name)}", hint=hint)
        for each in placements:
            if type(each).__name__ not in ("Shard", "Replicate"):
                raise UsageError(
                    f"{quoted(name)} cannot be placed as {each}: a checkpoint holds no such part", hint=hint
                )
        return tuple(placements)


class Layout(NamedTuple):
    """One tensor on a mesh.

    Attributes:
        mesh: The mesh.
        placements: One placement for each dimension of the mesh.
        shape: Shape of the whole tensor in torch.
        box: The elements that this rank keeps.
    """

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    box: tuple[slice, ...]

    def check_device(self, name: str, device: Any) -> None:
        """Check that the part of a tensor will be on a device of the mesh's kind.

        Raises:
            UsageError: the part will be on a device of another kind, or will not be a tensor of torch.
        """
        kind = getattr(device, "type", None)
        if kind != self.mesh.device_type:
            wanted = f"device={self.mesh.device_type!r}" if kind else 'framework="pt"'
            raise UsageError(
                f"the DTensor {quoted(name)} is on a mesh of {self.mesh.device_type!r} devices, but its part is to be"
                f" on {str(device)[:80]!r}",
                hint=f"Pass {wanted}",
            )

    def dtensor(self, local: Any) -> Any:
        """Make the DTensor of this rank's part, without communication between ranks."""
        kind = sys.modules["torch.distributed.tensor"].DTensor
        shape = sys.modules["torch"].Size(self.shape)
        stride = tuple(prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))
        return kind.from_local(local, self.mesh, self.placements, run_check=False, shape=shape, stride=stride)
