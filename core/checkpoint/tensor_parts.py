"""Finds the bytes that hold a part of a tensor, and cuts the part out of them.

A part of whole rows is one range of bytes. The elements of any other part lie in separate runs: one range that holds
all runs is read, and the part is copied out of it, because reading each run would take thousands of requests. Only
long runs that lie far apart are read alone (`streamer.core.checkpoint.destinations`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from streamer.core.errors import UsageError
from streamer.core.format.dtypes import bits_of
from streamer.core.format.header_entries import TensorEntry
from streamer.core.quoting import quoted
from streamer.core.tensors.frameworks import Framework

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


def runs_of(cut: Cut) -> tuple[int, list[tuple[int, int]]]:
    """Return the runs of a part, counted in elements.

    Returns:
        The elements of a run; and for each dimension of the runs, from the innermost outwards, their number and
        distance. There is no such dimension if the part is one run.
    """
    return _levels(cut.box, _strides(cut.whole))


def starts_of(cut: Cut, levels: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first element of the first run in each place of some outer dimensions of `runs_of`.

    They are in the order of the part's elements, and counted in what is read.
    """
    steps = [range(0, number * distance, distance) for number, distance in reversed(levels)]
    return [cut.first + sum(places) for places in product(*steps)]


def _levels(box: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
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
