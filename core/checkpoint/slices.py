"""One of several equal parts of a tensor: what a rank keeps, along one dimension.

Guarantees: the parts of all indices, one after the other, are the tensor, or each of its blocks.
Refuses: counts below 1, indices that are not below the count, dimensions that the tensor does not have, scalars.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.cuts import cut_out
from streamer.core.errors import UsageError
from streamer.core.format.header import TensorEntry
from streamer.core.quoting import quoted

__all__ = ["Slice"]


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
