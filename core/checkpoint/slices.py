"""Which part of each tensor a caller asks for: ``slices=`` by pattern, function, model's plan, or placements.

Guarantees: a pattern that decides about no tensor is an error, never a silently larger result; every part is checked
against its tensor's shape before a byte of data is read. The parts of a rank of a `DeviceMesh`, and their sizes, are
those of ``torch.distributed.tensor.distribute_tensor``.

Refuses: placements that are no part of a tensor (partial sums), ranks outside of the mesh, and devices of another kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.parallel_plans import Slice, TensorParallel
from streamer.core.checkpoint.selection import select
from streamer.core.checkpoint.tensor_parts import cut_out
from streamer.core.errors import StreamerError, UsageError
from streamer.core.quoting import quoted


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
    """One tensor on a mesh."""

    mesh: Any
    placements: tuple[Any, ...]  # one placement for each dimension of the mesh
    shape: tuple[int, ...]  # shape of the whole tensor in torch
    box: tuple[slice, ...]  # the elements that this rank keeps

    def check_device(self, name: str, device: Any) -> None:
        """Check that the part of a tensor will be on a device of the mesh's kind."""
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


SlicesOption: TypeAlias = (
    Mapping[str, Slice | None]
    | Callable[[str, tuple[int, ...], str], Slice | None]
    | TensorParallel
    | Placements
    | None
)
_Rule: TypeAlias = Callable[[str, tuple[int, ...], str], Any]


def checked_slices(slices: SlicesOption) -> SlicesOption:
    """Check the argument ``slices``; return a mapping as a dict of its own."""
    if (
        slices is None
        or isinstance(slices, (TensorParallel, Placements))
        or (callable(slices) and not isinstance(slices, type))
    ):
        return slices
    if not isinstance(slices, Mapping):
        what = "a mapping of patterns to Slice, a callable, a TensorParallel or Placements"
        hint = 'For all tensors: {"*": Slice(…)}' if isinstance(slices, Slice) else None
        raise UsageError(f"slices must be None, {what}, not {type(slices).__name__}", hint=hint)
    for pattern, part in slices.items():
        if not isinstance(pattern, str):
            raise UsageError(f"slices must have strings as keys, not {type(pattern).__name__}")
        _check_part(part, f"for pattern {quoted(pattern)}")
    return dict(slices)


def sliced(
    wanted: Sequence[ShardTensor], slices: SlicesOption, available: Sequence[str], uri: str | None = None
) -> list[ShardTensor]:
    """Narrow tensors to the parts that are asked for."""
    if slices is None:
        return list(wanted)
    try:
        if isinstance(slices, Placements):
            placed = _rule_of_patterns(slices.placements, available)
            return [_placed(each, slices, placed) for each in wanted]
        rule = _rule_of(slices, available)
        return [_part_of(each, rule) for each in wanted]
    except StreamerError as error:
        error.uri = error.uri or uri
        raise


def _rule_of(slices: Any, available: Sequence[str]) -> _Rule:
    if isinstance(slices, TensorParallel):
        slices.check_fits(available)
        return lambda name, shape, _dtype: slices.slice_of(name, shape)
    return _rule_of_patterns(slices, available) if isinstance(slices, Mapping) else slices


def _rule_of_patterns(slices: Mapping[str, Any], available: Sequence[str]) -> _Rule:
    parts: dict[str, Any] = {}
    for pattern, part in slices.items():
        matched = select(pattern, available) or set()
        if matched <= parts.keys():
            raise UsageError(
                f"pattern {quoted(pattern)} of slices= decides about no tensor: earlier ones match all of its names",
                hint="The first pattern that matches a name counts: put it before the more general ones",
            )
        parts = {**dict.fromkeys(matched, part), **parts}
    return lambda name, _shape, _dtype: parts.get(name)


def _part_of(whole: ShardTensor, rule: _Rule) -> ShardTensor:
    entry = whole.entry
    try:
        part = rule(entry.name, entry.shape, entry.dtype)
    except StreamerError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        raise UsageError(f"slices= raised for tensor {quoted(entry.name)} of {list(entry.shape)}: {said}") from error
    _check_part(part, f"for tensor {quoted(entry.name)}")
    return whole if part is None else part.of(whole)


def _placed(whole: ShardTensor, placements: Placements, rule: _Rule) -> ShardTensor:
    entry = whole.entry
    packed = 2 if entry.dtype == "F4" and entry.shape and not entry.shape[-1] % 2 else 1  # as torch has them
    shape = (*entry.shape[:-1], entry.shape[-1] // packed) if packed > 1 else entry.shape
    layout = placements.layout(entry.name, rule(entry.name, entry.shape, entry.dtype), shape)
    if layout is None:
        return whole
    box = list(layout.box)
    if packed > 1:
        box[-1] = slice(box[-1].start * packed, box[-1].stop * packed)
    read, cut = cut_out(entry, box)
    return ShardTensor(whole.shard, read, cut, layout)


def _check_part(part: Any, where: str) -> None:
    if part is not None and not isinstance(part, Slice):
        raise UsageError(
            f"slices must give a streamer.Slice or None {where}, not {type(part).__name__}",
            hint="Slice(dim=0, index=rank, count=ranks); None loads the whole tensor",
        )
