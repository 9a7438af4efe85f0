"""The parts of tensors that a rank keeps: by a model's tensor-parallel plan, or by placements on a mesh of devices.

A plan says which way each module is cut. The names of the ways, and what they cut, are those of transformers'
``tp_plan`` (https://huggingface.co/docs/transformers/perf_infer_gpu_multi). Only the parameters count here: two ways
that differ in what they do with a module's input or output cut alike. Refuses: names of other ways, rules that match no
tensor, and tensors of a cut module whose way of cutting is unknown.

The parts of a rank of a `DeviceMesh`, and their sizes, are those of ``torch.distributed.tensor.distribute_tensor``.
Refuses: placements that are no part of a tensor (partial sums), ranks outside of the mesh, and devices of another kind.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from streamer.core.checkpoint.selection import hint_at_names
from streamer.core.checkpoint.tensor_parts import Slice
from streamer.core.errors import UnknownTensorError, UsageError
from streamer.core.imported import if_imported
from streamer.core.quoting import printable, quoted

# A linear layer's weight is [out, in], fused experts are [experts, out, in].
_CUT_OUTPUT = ("colwise", "colwise_rep", "colwise_gather_output", "local_colwise")
_CUT_INPUT = ("rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise")
_CUT_FIRST = ("embedding_rowwise", "grouped_gemm")
_CUT_SECOND = ("embedding_colwise",)
_WHOLE = (
    "replicate",
    "replicated_with_grad_allreduce",
    "sequence_parallel",
    "all_reduce",
    "gather",
    "local",
    "local_params",
    "mla_kv_a_proj",
    "moe_tp_experts",
    "moe_identity_expert",
    "ep_dispatch_experts",
    "ep_router",
)
_PACKED_OUTPUT = ("packed_colwise",)  # gate and up projections in one tensor, one after the other
_PACKED_INPUT = ("packed_rowwise", "local_packed_rowwise")
KNOWN_WAYS = (*_CUT_OUTPUT, *_CUT_INPUT, *_CUT_FIRST, *_CUT_SECOND, *_PACKED_OUTPUT, *_PACKED_INPUT, *_WHOLE)
_PARAMETERS = ("weight", "bias")  # of a module whose rule is of the module, not of one of its parameters


@dataclass(frozen=True)
class TensorParallel:
    """What one tensor-parallel rank keeps, for ``slices=`` of `streamer.load`.

    Args:
        rank: This rank, from 0.
        size: The number of ranks.
        plan: Names of modules or tensors, as the checkpoint has them, to the way in which they are cut. ``*`` stands
            for one part of a name between dots. A rule of a tensor's own name counts before one of its module, and the
            first that matches before later ones. Tensors without a rule are loaded whole. With tensors stored as
            ``[out, in]``:

            - ``"colwise"`` (also ``colwise_rep``, ``colwise_gather_output``, ``local_colwise``): weights by `out`
              (dimension -2), tensors of one dimension (biases) by their only dimension;
            - ``"rowwise"`` (also ``rowwise_rep``, ``rowwise_split_input``, ``local_rowwise``): weights by `in`
              (dimension -1), tensors of one dimension (biases) whole;
            - ``"embedding_rowwise"``: by the vocabulary (dimension 0); ``"embedding_colwise"``: by dimension 1;
            - ``"grouped_gemm"``: fused experts by expert (dimension 0);
            - ``"packed_colwise"``, ``"packed_rowwise"`` (also ``local_packed_rowwise``): as without ``packed_``, but
              each half of that dimension by itself, which `size` must divide; no biases of ``packed_colwise``;
            - ``"replicate"`` and the other names of transformers that cut no parameter: whole.

    Sizes that `size` does not divide are cut as `Slice` cuts them.

    Raises:
        UsageError: `rank` or `size` is out of bounds, or the plan has a name that is not listed.

    Example:
        >>> plan = {"model.layers.*.mlp.up_proj": "colwise", "model.layers.*.mlp.down_proj": "rowwise"}
        >>> TensorParallel(rank=1, size=8, plan=plan).slice_of("model.layers.0.mlp.down_proj.weight", (4096, 14336))
        Slice(dim=-1, index=1, count=8, blocks=1)
    """

    rank: int
    size: int
    plan: Mapping[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        try:
            part = Slice(0, self.rank, self.size)
        except UsageError as error:
            hint = "size is the number of ranks, 1 or more; rank is from 0 to size - 1"
            ranks = printable(f"rank {self.rank!r} of size {self.size!r}")
            raise UsageError(f"a TensorParallel cannot have {ranks}", hint=hint) from error
        if not isinstance(self.plan, Mapping):
            raise UsageError(f"the plan is a mapping of names to ways, not {type(self.plan).__name__}")
        vars(self).update(rank=part.index, size=part.count, plan=dict(self.plan))
        for name, way in self.plan.items():
            if not isinstance(name, str):
                raise UsageError(f"the plan has a key of type {type(name).__name__}, not a name")
            _check_way(name, way)

    def slice_of(self, name: str, shape: tuple[int, ...]) -> Slice | None:
        """Say which part of a tensor this rank keeps; None for the whole tensor.

        Args:
            name: Of the tensor, as the checkpoint has it.
            shape: Of the tensor, as the checkpoint has it.

        Raises:
            UsageError: the rule of its module does not say how it is cut.
        """
        way = self._way(name)
        module, _, parameter = name.rpartition(".")
        if way is None:
            way = self._way(module)
            if way is not None and way not in _WHOLE and parameter not in _PARAMETERS:
                raise UsageError(
                    f"the plan cuts {quoted(module)} {way}, which does not say how its {quoted(parameter)} is cut",
                    hint=f'Add a rule of its own to the plan: {quoted(name)}: "replicate" loads it whole',
                )
        if way in _PACKED_OUTPUT and len(shape) == 1:
            hint = f'Add a rule of its own to the plan: {quoted(name)}: "colwise" or "replicate"'
            raise UsageError(f"{way} does not say how {quoted(name)}, which has one dimension, is cut", hint=hint)
        dim = None if way is None else _dimension(way, len(shape))
        blocks = 2 if way in (*_PACKED_OUTPUT, *_PACKED_INPUT) else 1
        return None if dim is None else Slice(dim, self.rank, self.size, blocks)

    def check_fits(self, available: Sequence[str]) -> None:
        """Check that each rule that cuts matches a tensor.

        Args:
            available: The names of all tensors of the checkpoint.

        Raises:
            UnknownTensorError: a rule matches none.
        """
        names = {*available, *(name.rpartition(".")[0] for name in available)}
        for rule, way in self.plan.items():
            if way not in _WHOLE and not any(map(_compiled(rule).fullmatch, names)):
                hint = (
                    f"{hint_at_names(rule, available)}. Names are whole; leave the rule out if the tensor is not stored"
                )
                raise UnknownTensorError(f"the plan's rule {quoted(rule)} matches no tensor", hint=hint)

    def _way(self, name: str) -> str | None:
        return next((way for rule, way in self.plan.items() if _compiled(rule).fullmatch(name)), None)


@lru_cache(maxsize=4096)
def _compiled(rule: str) -> re.Pattern[str]:
    return re.compile(r"[^.]*".join(map(re.escape, rule.split("*"))))


def _dimension(way: str, rank: int) -> int | None:
    if way in (*_CUT_OUTPUT, *_PACKED_OUTPUT):
        return -2 if rank > 1 else -1
    if way in (*_CUT_INPUT, *_PACKED_INPUT):
        return -1 if rank > 1 else None
    if way in _WHOLE:
        return None
    return 1 if way in _CUT_SECOND else 0


def _check_way(name: str, way: object) -> None:
    if way in KNOWN_WAYS:
        return
    raise UsageError(
        f"the plan's rule for {quoted(name)} is {str(way)[:80]!r}, which is unknown",
        hint=f"Known: {', '.join(KNOWN_WAYS)}",
    )


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
        kind = getattr(if_imported("torch.distributed.device_mesh"), "DeviceMesh", None)
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
