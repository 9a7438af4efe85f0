"""The bytes of memory that tensors lie in, exactly; which tensors share memory; and which of them a file keeps.

A tensor that repeats a row (``expand``) has as many elements as a matrix, but covers only the bytes of one row. So
which of several tensors holds the values of the others is decided by these bytes, and never by counts or by shapes.
Guarantees: tensors share memory if they have a byte in common; a tensor is left out only if the one that is kept covers
all of its bytes. What ``safetensors.torch.save_model`` accepts is written as it writes it.
https://huggingface.co/docs/safetensors/torch_shared_tensors
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from streamer.core.errors import UsageError
from streamer.core.quoting import quoted

MOST_RANGES = 1 << 22  # 64 MiB while they are compared; a slice of columns has one range for each row


class MemoryRanges(NamedTuple):
    """Ranges of bytes in ascending order, which neither overlap nor touch."""

    device: str  # the device whose addresses these are
    begins: Any  # addresses of the first bytes
    ends: Any  # addresses behind the last bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes there are."""
        return int((self.ends - self.begins).sum())

    def covers(self, other: MemoryRanges) -> bool:
        """Say whether every byte of the other ranges is one of these."""
        if self.device != other.device or not len(self.begins):
            return not len(other.begins)
        at = np.searchsorted(self.begins, other.begins, side="right") - 1
        return bool(((at >= 0) & (self.ends[at] >= other.ends)).all())

    def meets(self, other: MemoryRanges) -> bool:
        """Say whether a byte of the other ranges is one of these."""
        if self.device != other.device or not len(self.begins):
            return False
        at = np.searchsorted(self.ends, other.begins, side="right")
        is_before_end = at < len(self.begins)
        return bool((self.begins[at[is_before_end]] < other.ends[is_before_end]).any())

    def joined(self, other: MemoryRanges) -> MemoryRanges:
        """Return the ranges of the bytes of both, which are on the same device."""
        begins, ends = (np.concatenate(pair) for pair in ((self.begins, other.begins), (self.ends, other.ends)))
        return _merged(self.device, begins, ends)


class Elements(NamedTuple):
    """Where the elements of a strided tensor lie."""

    device: str  # the device whose addresses these are
    first: int  # address of the first element, which is not the lowest if a stride is negative; 0 without memory
    item_bytes: int  # bytes of one element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # the strides, in bytes

    @classmethod
    def of(cls, tensor: Any) -> Elements:
        """Return those of a tensor of torch or of an array."""
        if hasattr(tensor, "data_ptr"):
            item_bytes = tensor.element_size()
            strides = tuple(each * item_bytes for each in tensor.stride())
            return cls(str(tensor.device), tensor.data_ptr(), item_bytes, tuple(tensor.shape), strides)
        return cls("cpu", tensor.__array_interface__["data"][0], tensor.itemsize, tensor.shape, tensor.strides)

    def span(self) -> tuple[str, int, int]:
        """Return the device, the lowest byte, and the byte behind the highest one; equal ones if there are none."""
        if 0 in self.shape:
            return self.device, 0, 0
        reaches = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        lowest, highest = sum(each for each in reaches if each < 0), sum(each for each in reaches if each > 0)
        return self.device, self.first + lowest, self.first + highest + self.item_bytes

    def ranges(self) -> MemoryRanges | None:
        """Return their bytes; None if these are more than `MOST_RANGES` pieces."""
        device, begin, end = self.span()
        if not self.first or begin == end:
            return MemoryRanges(device, np.empty(0, np.int64), np.empty(0, np.int64))
        begins, length = np.array([begin], np.int64), self.item_bytes
        for stride, size in self._steps():
            if len(begins) == 1 and stride <= length:
                length += (size - 1) * stride
            elif len(begins) * size > MOST_RANGES:
                return None
            else:
                begins = (begins[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return _merged(device, begins, begins + length)

    def meet(self) -> bool:
        """Say whether two elements have a byte in common, as those of an expanded tensor have."""
        if 0 in self.shape:
            return False
        reach_bytes = self.item_bytes
        for stride, size in self._steps():
            if stride < reach_bytes:
                ranges = self.ranges()
                return ranges is None or ranges.size_bytes < prod(self.shape) * self.item_bytes
            reach_bytes += (size - 1) * stride
        return False  # each dimension steps over all smaller ones

    def _steps(self) -> list[tuple[int, int]]:
        """Return the distance and the number of the steps of each dimension, the smallest first."""
        steps = zip(self.strides, self.shape, strict=True)
        return sorted((abs(stride), size) for stride, size in steps if size > 1)


def are_apart(tensors: Sequence[Elements]) -> bool:
    """Say whether no two tensors on one device have a byte in common; False if that takes too long to find out."""
    all_ranges = [ranges for each in tensors if (ranges := each.ranges()) is not None]
    if len(all_ranges) < len(tensors):
        return False
    begins, ends = (np.concatenate([getattr(each, name) for each in all_ranges]) for name in ("begins", "ends"))
    return _merged(tensors[0].device, begins, ends).size_bytes == sum(each.size_bytes for each in all_ranges)


def covered_names(names: Iterable[str], filled: Iterable[Any], tensors: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors all of whose bytes lie in tensors that are filled; empty tensors are none of them."""
    wanted = {name: ranges for name in names if (ranges := Elements.of(tensors[name]).ranges()) and len(ranges.begins)}
    there: dict[str, MemoryRanges] = {}
    for ranges in filter(None, (Elements.of(each).ranges() for each in filled if wanted)):
        there[ranges.device] = there[ranges.device].joined(ranges) if ranges.device in there else ranges
    return {name for name, ranges in wanted.items() if ranges.device in there and there[ranges.device].covers(ranges)}


def _merged(device: str, begins: Any, ends: Any) -> MemoryRanges:
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    is_first, is_last = np.ones((2, len(begins)), bool)
    is_first[1:] = is_last[:-1] = begins[1:] > ends[:-1]
    return MemoryRanges(device, begins[is_first], ends[is_last])


class SharedGroup(NamedTuple):
    """Tensors that share memory, directly or through others."""

    names: list[str]  # their names, sorted
    # The names of those that cover all bytes of the group, sorted; first those that show no byte twice
    complete: list[str]


def shared_groups(tensors: Mapping[str, Any]) -> list[SharedGroup]:
    """Return the groups of tensors that share memory."""
    spans = sorted((*Elements.of(tensor).span(), name) for name, tensor in tensors.items())
    groups: list[SharedGroup] = []
    run: list[str] = []
    on, reach = "", 0
    for device, begin, end, name in spans:
        if begin == end:
            continue
        if run and (device != on or begin >= reach):
            groups += _groups_of(run, tensors)
            run = []
        reach = max(reach, end) if run else end
        on = device
        run.append(name)
    return sorted([*groups, *_groups_of(run, tensors)])


def names_to_drop(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Choose the tensors to leave out because another one holds their memory; return dropped name to kept name."""
    dropped: dict[str, str] = {}
    for names, complete in shared_groups(tensors):
        if not complete:
            raise UsageError(
                f"the tensors {_listed(names)} share memory, and none of them covers it all",
                hint="Save clones of them, which have memory of their own: {name: tensor.clone()}",
            )
        dropped |= {name: complete[0] for name in names if name != complete[0]}
    for name in tensors.keys() - dropped.keys():
        if Elements.of(tensors[name]).meet():
            raise UsageError(
                f"tensor {quoted(name)} shows the same memory in several elements, and so could not be filled again",
                hint="Give the module its clone(); or use save, which writes each element",
            )
    return dropped


def refuse_shared(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that share memory: each would be written in full, and would be separate when loaded again."""
    groups = shared_groups(tensors)
    if groups:
        shared = [tensors[name] for group in groups for name in group.names]
        is_torch = all(hasattr(each, "data_ptr") for each in shared)
        what, copied = ("tensors", "tensor.clone()") if is_torch else ("arrays", "array.copy()")
        hint = f"ive copies of them, which have memory of their own: {{name: {copied}}}"
        has_way = is_torch and all(group.complete for group in groups)
        hint = f"save_model writes one of each group; or g{hint}" if has_way else f"G{hint}"
        raise UsageError(f"{what} share memory: {'; '.join(_listed(group.names) for group in groups)}", hint=hint)


def _groups_of(run: list[str], tensors: Mapping[str, Any]) -> list[SharedGroup]:
    """Divide tensors whose spans overlap: the columns of a matrix share no byte."""
    if len(run) < 2:
        return []
    ranges = {name: _ranges_of(name, tensors[name]) for name in run}
    groups: list[tuple[list[str], MemoryRanges]] = []
    for name, own in ranges.items():
        met = [group for group in groups if group[1].meets(own)]
        groups = [group for group in groups if not group[1].meets(own)]
        names = [name, *(each for group in met for each in group[0])]
        groups.append((names, reduce(MemoryRanges.joined, (group[1] for group in met), own)))
    found = []
    for names, joined in groups:
        complete = sorted(name for name in names if ranges[name].size_bytes == joined.size_bytes)
        complete.sort(key=lambda name: Elements.of(tensors[name]).meet())
        found.append(SharedGroup(sorted(names), complete))
    return [group for group in found if len(group.names) > 1]


def _ranges_of(name: str, tensor: Any) -> MemoryRanges:
    ranges = Elements.of(tensor).ranges()
    if ranges is None:
        hint = "Give its clone(), or its copy()"
        raise UsageError(f"tensor {quoted(name)} is in too many pieces to see which memory it shares", hint=hint)
    return ranges


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(quoted, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
