"""A part of a tensor: which bytes hold it, and how it is cut out of them.

A part of whole rows is one range of bytes. The elements of any other part lie in separate runs: one range that holds
all runs is read, because reading each run would take thousands of requests. The engine puts runs of equal length at
equal distances into the destination; any other part is copied out of the range. Runs that are long and far apart are
read as several ranges: of fused experts (``[experts, out, in]``) that are cut by `out`, a rank reads what it keeps.

`Slice` is one of several equal parts along a dimension. Guarantees: the parts of all indices, one after the other, are
the tensor, or each of its blocks. Refuses: counts below 1, indices that are not below the count, dimensions that the
tensor does not have, scalars.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from streamer.core.errors import UsageError
from streamer.core.format.dtypes import bits_of
from streamer.core.format.header_entries import TensorEntry
from streamer.core.quoting import quoted
from streamer.core.tensors.frameworks import Framework

if TYPE_CHECKING:
    from streamer.core.checkpoint.catalog import ShardTensor

# The whole tensor is read unless a shorter range saves one byte in this many, because only whole tensors have digests.
LEAST_SAVED = 8


class Cut(NamedTuple):
    """Cuts a part that is not one range of bytes out of a longer range, which is read as a tensor of one dimension."""

    whole: tuple[int, ...]  # shape of the tensor, as the checkpoint has it
    box: tuple[int, ...]  # shape of the part, with the dimensions of `whole`
    first: int  # position of the part's first element in the tensor that is read
    kept: tuple[int, ...]  # shape of the part as it is handed out: neighbouring dimensions of `box` may be joined

    def view(self, read: Any, entry: TensorEntry, framework: Framework) -> Any:
        """Return the wanted part of `read`, a tensor of one dimension: a view of it if possible, else a copy."""
        whole, box, kept = (framework.shape(entry._replace(shape=each)) for each in (self.whole, self.box, self.kept))
        if hasattr(read, "data_ptr"):
            first = self.first * read.numel() // prod(entry.shape)  # torch stores two F4 values in one element
            return read.as_strided(box, _strides(whole), read.storage_offset() + first).reshape(kept)
        in_bytes = [stride * read.itemsize for stride in _strides(whole)]
        numpy, memory = sys.modules["numpy"], read.view("u1")  # numpy makes no buffer of a dtype of ml_dtypes
        return numpy.ndarray(box, read.dtype, memory, self.first * read.itemsize, in_bytes).reshape(kept)

    def copy(self, read: Any, entry: TensorEntry, framework: Framework) -> Any:
        """Return the part in memory of its own, so that the other bytes that were read are freed."""
        view = self.view(read, entry, framework)
        return view.contiguous() if hasattr(view, "data_ptr") else sys.modules["numpy"].ascontiguousarray(view)


def cut_out(
    entry: TensorEntry, box: Sequence[slice], kept: tuple[int, ...] | None = None
) -> tuple[TensorEntry, Cut | None]:
    """Find the bytes that hold a part of a tensor.

    Returns:
        The entry to read, and the cut that makes the part of it; None if the entry is the part itself.
    """
    shape = tuple(each.stop - each.start for each in box)
    kept = shape if kept is None else kept
    if 0 in shape:
        return entry._replace(shape=kept, end=entry.begin), None
    _check_whole_bytes(entry, box)
    strides, count = _strides(entry.shape), prod(entry.shape)
    first = sum(each.start * stride for each, stride in zip(box, strides, strict=True))
    last = 1 + sum((each.stop - 1) * stride for each, stride in zip(box, strides, strict=True))
    if last - first == prod(shape):
        return _range(entry, first, last)._replace(shape=kept), None
    if (count - (last - first)) * LEAST_SAVED < count:
        return entry._replace(shape=(count,)), Cut(entry.shape, shape, first, kept)
    return _range(entry, first, last), Cut(entry.shape, shape, 0, kept)


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
        dim, block = self.place(entry.name, entry.shape)
        first, end = self.bounds(block)
        before, after = entry.shape[:dim], entry.shape[dim + 1 :]
        in_blocks = entry._replace(shape=(*before, self.blocks, block, *after))
        box = [slice(0, size) for size in in_blocks.shape]
        box[dim + 1] = slice(first, end)
        read, cut = cut_out(in_blocks, box, (*before, self.blocks * (end - first), *after))
        return whole._replace(entry=read, cut=cut)

    def place(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the dimension, counted from the first, and the size of a block in it; raises as `of`."""
        if not -len(shape) <= self.dim < len(shape):
            what = f"{list(shape)} has no dimension {self.dim}" if shape else "[] is a scalar, and has no dimension"
            hint = 'Load it whole: None in slices=, "replicate" in a plan' if not shape else None
            raise UsageError(f"{self} does not fit tensor {quoted(name)}: its shape {what}", hint=hint)
        dim = self.dim % len(shape)
        if self.blocks > 1 and shape[dim] % (self.blocks * self.count):
            what = f"{self.blocks} blocks of {self.count} parts do not divide dimension {dim} of {list(shape)}"
            raise UsageError(f"{self} does not fit tensor {quoted(name)}: {what}")
        return dim, shape[dim] // self.blocks


Range: TypeAlias = tuple[int, int]
LEAST_PIECE_BYTES = 64 << 10  # the requests for shorter pieces would cost more than the bytes between them


def in_pieces(wanted: ShardTensor, largest_gap_bytes: int) -> tuple[ShardTensor, Sequence[Range]]:
    """Divide what is read of a tensor into pieces, if that leaves out bytes that are not wanted.

    Returns:
        The tensor, and the ranges of its shard that are read for it. If there are several, its bytes are theirs, one
        after the other; the end of its entry is then not an offset in the shard.
    """
    entry, cut = wanted.entry, wanted.cut
    whole = wanted, [(entry.begin, entry.end)]
    if cut is None:
        return whole
    run, levels = runs_of(cut)
    bits = bits_of(entry.dtype)
    run_bytes = run * bits // 8
    if not levels or run_bytes < LEAST_PIECE_BYTES or levels[0][1] * bits // 8 - run_bytes <= largest_gap_bytes:
        return whole
    begins = [entry.begin + start * bits // 8 for start in starts_of(cut, levels)]
    kept = entry._replace(shape=cut.kept, begin=begins[0], end=begins[0] + prod(cut.box) * bits // 8)
    return wanted._replace(entry=kept, cut=None), [(begin, begin + run_bytes) for begin in begins]


LEAST_RUN_BYTES = 64  # at this length, the engine and a copy by torch take equal time; longer runs are faster


def in_runs(wanted: ShardTensor) -> tuple[ShardTensor, int, tuple[int, int]] | None:
    """Describe a part by its runs of bytes, so that the engine puts only these into the destination.

    Returns:
        The tensor without a cut, whose entry begins where its first run begins; the end of its last run; the length of
        a run, and the distance of their beginnings. None if the runs are too short, or their distances differ.
    """
    entry, cut = wanted.entry, wanted.cut
    run, levels = (0, []) if cut is None else runs_of(cut)
    bits = bits_of(entry.dtype)
    run_bytes = run * bits // 8
    if cut is None or len(levels) != 1 or run_bytes < LEAST_RUN_BYTES:
        return None
    (number, stride), begin = levels[0], entry.begin + cut.first * bits // 8
    kept = entry._replace(shape=cut.kept, begin=begin, end=begin + run_bytes * number)
    end = begin + stride * bits // 8 * (number - 1) + run_bytes
    return wanted._replace(entry=kept, cut=None), end, (run_bytes, stride * bits // 8)


def runs_of(cut: Cut) -> tuple[int, list[tuple[int, int]]]:
    """Return the runs of a part, counted in elements.

    Returns:
        The elements of a run; and for each dimension of the runs, from the innermost outwards, their number and
        distance. There is no such dimension if the part is one run.
    """
    return levels_of(cut.box, _strides(cut.whole))


def starts_of(cut: Cut, levels: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first element of the first run in each place of some outer dimensions of `runs_of`.

    They are in the order of the part's elements, and counted in what is read.
    """
    steps = [range(0, number * distance, distance) for number, distance in reversed(levels)]
    return [cut.first + sum(places) for places in product(*steps)]


def levels_of(box: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Return the elements of a run, and per dimension, from the innermost outwards, the number and distance of runs."""
    run, levels = 1, list[tuple[int, int]]()
    for size, stride in zip(reversed(box), reversed(strides), strict=True):
        if size == 1:
            continue
        if not levels and stride == run:
            run *= size
        elif levels and stride == levels[-1][0] * levels[-1][1]:
            levels[-1] = levels[-1][0] * size, levels[-1][1]
        else:
            levels.append((size, stride))
    return run, levels


def _range(entry: TensorEntry, first: int, last: int) -> TensorEntry:
    """Narrow an entry to some of its elements, which begin and end with a byte."""
    bits = bits_of(entry.dtype)
    begin, end = entry.begin + first * bits // 8, entry.begin + last * bits // 8
    return entry._replace(shape=(last - first,), begin=begin, end=end)


def _check_whole_bytes(entry: TensorEntry, box: Sequence[slice]) -> None:
    """Check that each run of the part begins and ends with a byte."""
    bits = bits_of(entry.dtype)
    for each, size, stride in zip(box, entry.shape, _strides(entry.shape), strict=True):
        is_cut = each.stop - each.start < size
        if is_cut and any(position * stride * bits % 8 for position in (each.start, each.stop, size)):
            raise UsageError(
                f"tensor {quoted(entry.name)} of {entry.dtype} cannot be cut to {each.start}:{each.stop} of {size},"
                " which begins or ends inside of a byte",
                hint="Load it whole, or cut another dimension",
            )


def _strides(shape: Sequence[int]) -> list[int]:
    """Count the elements from one position of each dimension to the next."""
    return [prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
