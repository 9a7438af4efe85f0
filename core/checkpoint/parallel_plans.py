"""One of several equal parts of a tensor, along one dimension; the parts of a tensor-parallel rank, by a model's plan.

Guarantees: the parts of all indices, one after the other, are the tensor, or each of its blocks.
Refuses: counts below 1, indices that are not below the count, dimensions that the tensor does not have, scalars.

A plan says which way each module is cut. The names of the ways, and what they cut, are those of transformers'
``tp_plan`` (https://huggingface.co/docs/transformers/perf_infer_gpu_multi). Only the parameters count here: two ways
that differ in what they do with a module's input or output cut alike. Refuses: names of other ways, rules that match no
tensor, and tensors of a cut module whose way of cutting is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.selection import hint_at_names
from streamer.core.checkpoint.tensor_parts import cut_out
from streamer.core.errors import UnknownTensorError, UsageError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.quoting import printable, quoted


@dataclass(frozen=True)
class Slice:
    """One of `count` parts of a tensor along a dimension, for ``slices=`` of `streamer.load`.

    A dimension that `count` does not divide is cut as ``torch.chunk`` and the ``Shard`` of DTensor cut it: each part
    has ``ceil(size / count)`` positions, the last parts are smaller, or empty. 10 rows in 4 parts are 3, 3, 3 and 1;
    5 rows are 2, 2, 1 and 0. (https://docs.pytorch.org/docs/stable/generated/torch.chunk.html)

    Args:
        dim: The dimension, as the checkpoint stores the tensor; a negative one counts from the last.
        index: Which part, from 0: the rank.
        count: How many parts: the number of ranks.
        blocks: How many equal blocks lie along the dimension (2 where gate and up projections are one tensor). The part
            is that of each block, one after the other; `blocks` times `count` must then divide the dimension.

    Raises:
        UsageError: an argument is no integer, `count` or `blocks` is below 1, or `index` is not in ``0 … count - 1``.

    Example:
        >>> Slice(dim=0, index=3, count=4).bounds(10)
        (9, 10)
    """

    dim: int
    index: int
    count: int
    blocks: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, Integral) or isinstance(value, bool):
                hint = 'int(os.environ["RANK"]) makes one' if isinstance(value, str) else None
                raise UsageError(f"{name} of a Slice is an integer, not {type(value).__name__}", hint=hint)
        vars(self).update({name: int(value) for name, value in vars(self).items()})  # those of numpy overflow
        if self.count < 1 or not 0 <= self.index < self.count:
            raise UsageError(
                f"a Slice cannot have index {self.index} of count {self.count}",
                hint="count is the number of ranks, 1 or more; index is the rank, from 0 to count - 1",
            )
        if self.blocks < 1:
            raise UsageError(f"a Slice cannot have {self.blocks} blocks", hint="1 is a tensor that is no joint one")

    def bounds(self, size: int) -> tuple[int, int]:
        """Return the first position of this part, and the one after its last, in a dimension of this size."""
        each = -(-size // self.count)
        return min(size, self.index * each), min(size, (self.index + 1) * each)

    def of(self, whole: ShardTensor) -> ShardTensor:
        """Return this part of a tensor.

        Raises:
            UsageError: the tensor has no such dimension, the blocks do not divide the dimension, or the part begins or
                ends inside of a byte.
        """
        entry = whole.entry
        dim, block = self._place(entry)
        first, end = self.bounds(block)
        before, after = entry.shape[:dim], entry.shape[dim + 1 :]
        in_blocks = entry._replace(shape=(*before, self.blocks, block, *after))
        box = [slice(0, size) for size in in_blocks.shape]
        box[dim + 1] = slice(first, end)
        read, cut = cut_out(in_blocks, box, (*before, self.blocks * (end - first), *after))
        return ShardTensor(whole.shard, read, cut)

    def _place(self, entry: TensorEntry) -> tuple[int, int]:
        """Return the dimension, counted from the first, and the size of a block in it; raises as `of`."""
        shape = entry.shape
        if not -len(shape) <= self.dim < len(shape):
            what = f"{list(shape)} has no dimension {self.dim}" if shape else "[] is a scalar, and has no dimension"
            hint = 'Load it whole: None in slices=, "replicate" in a plan' if not shape else None
            raise UsageError(f"{self} does not fit tensor {quoted(entry.name)}: its shape {what}", hint=hint)
        dim = self.dim % len(shape)
        if self.blocks > 1 and shape[dim] % (self.blocks * self.count):
            what = f"{self.blocks} blocks of {self.count} parts do not divide dimension {dim} of {list(shape)}"
            raise UsageError(f"{self} does not fit tensor {quoted(entry.name)}: {what}")
        return dim, shape[dim] // self.blocks


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
