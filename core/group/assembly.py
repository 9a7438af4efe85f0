"""The bytes of the tensors that one rank keeps, and the memory that they are put into.

For each other rank, a rank cuts the bytes that it has read into runs. The kept bytes of a part, one after the other,
are in the order of the tensor's own bytes, as every part is a box in a tensor whose last dimension varies fastest.

Memory is allocated when the first bytes of a tensor arrive. A target of the caller's own is filled in place.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.tensor_parts import runs_of, starts_of
from streamer.core.engine.plan import Item, ReadPlan
from streamer.core.format.dtypes import bits_of
from streamer.core.tensors.device_tensors import DeviceTensors


class Runs(NamedTuple):
    """Equal runs of bytes at equal distances."""

    first: int  # offset of the first run, counted from the first byte of the tensor
    length: int  # bytes of a run
    stride: int  # bytes from the start of a run to that of the next
    number: int  # number of runs

    @property
    def end(self) -> int:
        """Offset of the byte after the last run."""
        return self.first + (self.number - 1) * self.stride + self.length

    def before(self, position: int) -> int:
        """Count the bytes of the runs that lie before an offset."""
        if position <= self.first:
            return 0
        run, inside = divmod(position - self.first, self.stride)
        return min(self.number * self.length, run * self.length + min(inside, self.length))

    def inside(self, begin: int, end: int) -> Iterator[Runs]:
        """Yield what lies between two offsets: at most a part of a run, whole runs, and a part of another run."""
        run = max(0, (begin - self.first - self.length) // self.stride + 1)
        last = min(self.number, -(-(end - self.first) // self.stride))
        while run < last:
            start = self.first + run * self.stride
            if start >= begin and start + self.length <= end:
                whole = min(last, (end - self.length - self.first) // self.stride + 1) - run
                yield Runs(start, self.length, self.stride, whole)
                run += whole
            else:
                low, high = max(begin, start), min(end, start + self.length)
                yield Runs(low, high - low, high - low, 1)
                run += 1


Part: TypeAlias = tuple[Runs, ...]  # in the order of their offsets, without overlaps; an empty part has no runs


def size_of(part: Part) -> int:
    """Count the bytes of a part."""
    return sum(runs.length * runs.number for runs in part)


def bytes_before(part: Part, position: int) -> int:
    """Count the bytes of a part that lie before an offset in its tensor."""
    return sum(runs.before(position) for runs in part)


def bytes_between(part: Part, begin: int, end: int) -> int:
    """Count the bytes of a part that lie between two offsets in its tensor."""
    return bytes_before(part, end) - bytes_before(part, begin)


def clipped(part: Part, begin: int, end: int) -> Iterator[Runs]:
    """Yield the runs of a part that lie between two offsets in its tensor, cut at these offsets."""
    for runs in part:
        if runs.first < end and begin < runs.end:
            yield from runs.inside(begin, end)


def part_of(wanted: ShardTensor, tensor_begin: int) -> Part:
    """Return the part that is kept of a tensor."""
    entry, cut = wanted.entry, wanted.cut
    begin, size_bytes = entry.begin - tensor_begin, entry.end - entry.begin
    if not size_bytes:
        return ()
    if cut is None:
        return (Runs(begin, size_bytes, size_bytes, 1),)
    bits = bits_of(entry.dtype)
    run, levels = runs_of(cut)
    count, stride = levels[0] if levels else (1, run)
    return tuple(
        Runs(begin + start * bits // 8, run * bits // 8, stride * bits // 8, count)
        for start in starts_of(cut, levels[1:])
    )


class TensorAssembly:
    """See the module's docstring."""

    def __init__(
        self, parts: Sequence[Part], plan: ReadPlan, device_tensors: DeviceTensors | None, targets: dict[int, Any]
    ) -> None:
        self._torch = sys.modules["torch"]
        self._parts, self._device_tensors, self._targets = parts, device_tensors, targets
        self._items = [Item(*row) for row in plan.item_rows()]
        self._memories: dict[int, _native.Memory] = {}
        self._bytes: dict[int, Any] = {}

    def takes_memory_of_engine(self, tensor: int) -> bool:
        """Whether memory that the engine has filled can be handed out as the tensor's memory, without a copy."""
        item = self._items[tensor]
        return not item.target and item.device == _native.HOST

    def keep(self, tensor: int, memory: _native.Memory) -> None:
        """Hand out this memory for a tensor."""
        self._memories[tensor] = memory

    def add_read(self, tensor: int, begin: int, read: Any) -> None:
        """Add bytes of a tensor that this rank read, from an offset in the tensor on."""
        part = self._parts[tensor]
        for runs in clipped(part, begin, begin + len(read)):
            size_bytes, at = runs.length * runs.number, bytes_before(part, runs.first)
            self._place(tensor, at, packed(read, begin, runs), size_bytes)

    def add_received(self, tensor: int, begin: int, received: Any) -> None:
        """Add bytes of a tensor that another rank read, from an offset on: only bytes that this rank keeps."""
        self._place(tensor, bytes_before(self._parts[tensor], begin), received, len(received))

    def finish(self, tensors: Sequence[int]) -> None:
        """Begin the copies to accelerators of tensors that are complete."""
        for tensor in tensors:
            self._bytes.pop(tensor, None)
        if self._device_tensors is not None:
            self._device_tensors.start_copies(tensors)

    def take(self, tensor: int) -> _native.Memory | None:
        """Hand over the memory of a tensor; None if the memory is empty, the caller's or on an accelerator."""
        return self._memories.pop(tensor, None)

    def clear(self) -> None:
        """Free the memory that was not taken."""
        self._memories.clear()
        self._bytes.clear()

    def _place(self, tensor: int, at: int, source: Any, size_bytes: int) -> None:
        flat = self._bytes.get(tensor)
        if flat is None:
            flat = self._bytes[tensor] = self._allocated(tensor)
        copy_bytes(flat[at : at + size_bytes].view(source.shape), source)

    def _allocated(self, tensor: int) -> Any:
        """Return the bytes of a tensor as a flat tensor of torch, on whichever device they are."""
        item, size_bytes = self._items[tensor], size_of(self._parts[tensor])
        uint8 = self._torch.uint8
        if item.target and item.device == _native.HOST:
            return self._torch.frombuffer((ctypes.c_char * size_bytes).from_address(item.target), dtype=uint8)
        if item.target:
            return self._targets[tensor].view(-1).view(uint8)
        if item.device != _native.HOST:
            assert self._device_tensors is not None
            self._device_tensors.allocate([tensor])
            return self._device_tensors.bytes_of(tensor)
        memory = self._memories[tensor] = _native.allocate(size_bytes)
        return self._torch.frombuffer(memory, dtype=uint8)


def copy_bytes(target: Any, source: Any) -> None:
    """Copy bytes between tensors of one shape; in this machine's memory, by this thread alone.

    torch's threads wait for each other without sleeping: with four ranks on two processors, a load took nearly twice as
    long.
    """
    if target.device.type == source.device.type == "cpu":
        target.numpy()[...] = source.numpy()
    else:
        target.copy_(source)


def packed(read: Any, begin: int, runs: Any) -> Any:
    """Return some runs of bytes that were read from an offset on: a view with one row for each run."""
    return read.as_strided((runs.number, runs.length), (runs.stride, 1), read.storage_offset() + runs.first - begin)


def unpack(buffer: Any, position: int, part: Part, bounds: tuple[int, int], source: Any) -> None:
    """Copy the bytes of a part between two offsets in its tensor to where these are in a buffer, from a position on."""
    at = 0
    for runs in clipped(part, *bounds):
        size_bytes = runs.length * runs.number
        target = packed(buffer, bounds[0] - position, runs).numpy()
        target[...] = source[at : at + size_bytes].reshape(target.shape)
        at += size_bytes
