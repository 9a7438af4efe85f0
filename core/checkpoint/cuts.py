"""Which bytes hold a part of a tensor, and how the part is cut out of them.

Rows are one range of bytes, which is the part itself. The elements of any other part lie apart, in runs: one range is
read that holds them all, once, and the part is copied out of it. A request for each run would be thousands of requests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from streamer.core.errors import UsageError
from streamer.core.format.dtypes import bits_of
from streamer.core.format.header import TensorEntry
from streamer.core.quoting import quoted
from streamer.core.tensors.frameworks import Framework

__all__ = ["Cut", "cut_out"]

# The whole tensor is read unless a shorter range saves one byte in so many, as only whole tensors have digests.
LEAST_SAVED = 8


class Cut(NamedTuple):
    """A part of a tensor that is no range of bytes; what is read for it has one dimension.

    Attributes:
        whole: Shape of the tensor, as the checkpoint has it.
        kept: Shape of the part.
        first: The part's first element, counted in what is read.
    """

    whole: tuple[int, ...]
    kept: tuple[int, ...]
    first: int

    def view(self, read: Any, entry: TensorEntry, framework: Framework) -> Any:
        """Give the part as a view of what was read, a tensor of one dimension."""
        strides = _strides(framework.shape(entry._replace(shape=self.whole)))
        shape = framework.shape(entry._replace(shape=self.kept))
        if hasattr(read, "data_ptr"):
            first = self.first * read.numel() // prod(entry.shape)  # torch has two values of F4 in an element
            return read.as_strided(shape, strides, read.storage_offset() + first)
        in_bytes = [stride * read.itemsize for stride in strides]
        numpy, memory = sys.modules["numpy"], read.view("u1")  # numpy takes no dtype of ml_dtypes for a buffer
        return numpy.ndarray(shape, read.dtype, memory, self.first * read.itemsize, in_bytes)

    def copy(self, read: Any, entry: TensorEntry, framework: Framework) -> Any:
        """Give the part in memory of its own, so that the rest of what was read is freed."""
        view = self.view(read, entry, framework)
        return view.contiguous() if hasattr(view, "data_ptr") else sys.modules["numpy"].ascontiguousarray(view)


def cut_out(entry: TensorEntry, box: Sequence[slice]) -> tuple[TensorEntry, Cut | None]:
    """Find the bytes that hold a part of a tensor.

    Args:
        entry: The tensor.
        box: The elements of the part: a slice without a step for each dimension, inside of the shape.

    Returns:
        What to read, and how to cut the part out of it; None where what is read is the part.

    Raises:
        UsageError: the part begins or ends inside of a byte, which dtypes below 8 bits allow.
    """
    kept = tuple(each.stop - each.start for each in box)
    if kept == entry.shape:
        return entry, None
    if 0 in kept:
        return entry._replace(shape=kept, end=entry.begin), None
    strides = _strides(entry.shape)
    first = sum(each.start * stride for each, stride in zip(box, strides, strict=True))
    last = 1 + sum((each.stop - 1) * stride for each, stride in zip(box, strides, strict=True))
    _check_whole_bytes(entry, box)
    bits = bits_of(entry.dtype)
    if last - first == prod(kept):
        return entry._replace(
            shape=kept, begin=entry.begin + first * bits // 8, end=entry.begin + last * bits // 8
        ), None
    count = prod(entry.shape)
    if (count - (last - first)) * LEAST_SAVED < count:
        return entry._replace(shape=(count,)), Cut(entry.shape, kept, first)
    begin, end = entry.begin + first * bits // 8, entry.begin + last * bits // 8
    return entry._replace(shape=(last - first,), begin=begin, end=end), Cut(entry.shape, kept, 0)


def _check_whole_bytes(entry: TensorEntry, box: Sequence[slice]) -> None:
    """Check that each run of the part begins and ends with a byte."""
    bits = bits_of(entry.dtype)
    for each, size, stride in zip(box, entry.shape, _strides(entry.shape), strict=True):
        is_cut = each.stop - each.start < size
        if is_cut and any(position * stride * bits % 8 for position in (each.start, each.stop, size)):
            raise UsageError(
                f"tensor {quoted(entry.name)} of {entry.dtype} {list(entry.shape)} cannot be cut at"
                f" {each.start}:{each.stop}, which is inside of a byte",
                hint="Load it whole, or cut another dimension",
            )


def _strides(shape: Sequence[int]) -> list[int]:
    """Count the elements from one position of each dimension to the next."""
    return [prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
