"""Checks, before a byte is written, that the caller's tensors are plain memory that can be filled.

Refuses tensors that keep their values elsewhere than plain tensors do: subclasses with a ``__torch_dispatch__`` (such
as fake and masked tensors), tensors inside a transform of ``torch.func``, nested tensors, zero tensors without memory,
lazy parameters without a shape; and every object whose attributes raise. Refuses a tensor without memory, read-only
memory, elements that share bytes (an expanded tensor), and two tensors that share a part of their bytes. Two names of
exactly the same bytes are tied, and allowed.

torch does not report memory that the kernel maps read-only, although a write to it would kill the process. It is found
in `/proc/self/maps`; if that cannot be read, nothing is refused.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from streamer.core.errors import TargetError
from streamer.core.tensors import torch_private_names
from streamer.core.tensors.shared_memory import Elements

MAPS = Path("/proc/self/maps")  # proc_pid_maps(5): "begin-end perms …", in the order of addresses


class ReadOnlyMemory:
    """The read-only mappings of this process at the moment of construction."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for line in _lines():
            addresses, permissions = line.split(maxsplit=2)[:2]
            if b"w" not in permissions:
                begin, _, end = addresses.partition(b"-")
                self._begins.append(int(begin, 16))
                self._ends.append(int(end, 16))

    def holds_part_of(self, begin: int, end: int) -> bool:
        """Say whether any of these bytes is read-only; the last read-only mapping that begins before `end` decides."""
        before = bisect_left(self._begins, end)
        return before > 0 and self._ends[before - 1] > begin


def _lines() -> list[bytes]:
    try:
        return MAPS.read_bytes().splitlines()
    except OSError:
        return []


def check_kind(name: str, tensor: Any) -> None:
    """Check that a target is a plain tensor or a plain array."""
    try:
        reason = _reason_against(tensor) if hasattr(tensor, "data_ptr") else _reason_against_array(tensor)
    except Exception as error:
        raise opaque(name, tensor) from error
    if reason is not None:
        raise TargetError(f"the target of tensor {name[:80]!r} {reason}", hint=_HINTS.get(reason, _HINT))


def opaque(name: str, tensor: Any) -> TargetError:
    """Return the error for a tensor whose attributes raise."""
    return TargetError(
        f"the target of tensor {name[:80]!r} is a {type(tensor).__name__}, which does not reveal its memory", hint=_HINT
    )


_HINT = "Give a plain tensor; if this tensor wraps a plain one, give the wrapped tensor"
_LAZY = "is lazy, and has no shape before its module has seen an input"
_HINTS = {_LAZY: "Call the module once with an example, then load"}


def _reason_against(tensor: Any) -> str | None:
    dispatch, is_wrapped, is_zero, is_lazy = _of_torch()
    kind = type(tensor)
    if is_lazy(tensor):
        return _LAZY
    if getattr(kind, "__torch_dispatch__", None) is not dispatch:
        return f"is a {kind.__name__}, which keeps its values in its own way"
    if is_wrapped(tensor):
        return "is inside a transform of torch.func"
    if tensor.is_nested:
        return "is nested"
    if is_zero(tensor):
        return "is a tensor of zeros that has no memory"
    return None


def _reason_against_array(array: Any) -> str | None:
    if not hasattr(array, "dtype") or hasattr(array, "mask"):
        return f"is a {type(array).__name__}, which cannot be filled"
    return None if array.flags.writeable else "is read-only"


@cache
def _of_torch() -> tuple[object, Callable[[Any], bool], Callable[[Any], bool], Callable[[Any], bool]]:
    torch = sys.modules["torch"]  # imported: the target is a torch tensor
    is_wrapped, is_zero = torch_private_names.is_wrapped(torch), torch_private_names.is_without_memory(torch)
    return torch.Tensor.__torch_dispatch__, is_wrapped, is_zero, torch.nn.parameter.is_lazy


_HINT_META = "Give its nn.Module as the target, in which a loaded tensor can take its place"


class Extent(NamedTuple):
    """The bytes in which a tensor's elements lie. A contiguous tensor is one row of bytes, whatever its shape."""

    name: str  # the name of the tensor
    device: str  # the device whose addresses these are
    begin: int  # address of the lowest byte
    end: int  # address behind the highest byte
    first: int  # address of the first element, which is not the lowest if a stride is negative
    item_bytes: int  # bytes of one element, or 1
    shape: tuple[int, ...]  # the shape without dimensions of one element, whose stride has no meaning
    strides: tuple[int, ...]  # the strides of these dimensions, in bytes


def check_all_apart(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, str]:
    """Check that tensors can be filled, and share no part of their bytes unless they are tied.

    Returns:
        Name to name of an earlier tensor, for each tensor that has the same memory.
    """
    spans = [span for index, tensor in enumerate(tensors) if (span := _span_of(names[index], tensor, index))]
    _check_writable(names, spans)
    overlapping = _overlapping(spans)
    return check_apart(filter(None, (extent_of(names[index], tensors[index]) for index in overlapping)))


def extent_of(name: str, tensor: Any) -> Extent | None:
    """Return the extent of a torch tensor or a numpy array; None if it is empty or has no address."""
    if not hasattr(tensor, "data_ptr"):
        return _extent_of_array(name, tensor)
    if reason := _refusal(tensor):
        hint = _HINT_META if tensor.is_meta else "Give a tensor that has its memory for itself"
        raise TargetError(f"the target {name[:80]!r} {reason}", hint=hint)
    try:
        item_bytes, address = tensor.element_size(), tensor.data_ptr()
        storage_bytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * item_bytes
    except (NotImplementedError, RuntimeError) as error:
        _check_unaddressable(name, tensor, error)
        return None
    device = _text_of(tensor.device)
    if tensor.is_contiguous():
        extent = _row(name, device, address, tensor.nbytes)
    else:
        steps = [stride * item_bytes for stride in tensor.stride()]
        extent = _extent((name, device, item_bytes), address, tensor.shape, steps)
    if extent and extent.end - extent.begin > storage_bytes:
        raise _freed(name)
    return extent if address else None


def check_apart(extents: Iterable[Extent]) -> dict[str, str]:
    """Check that tensors share no part of their bytes unless they are tied.

    Returns:
        Name to name of an earlier tensor, for each tensor that has the same bytes in the same order.
    """
    ties: dict[str, str] = {}
    reaching: list[Extent] = []
    for extent in sorted(extents, key=_by_begin):
        if reaching:
            reaching = [each for each in reaching if each.end > extent.begin and each.device == extent.device]
        for other in reaching:
            if _are_tied(other, extent):
                ties.setdefault(extent.name, other.name)
            elif _share(other, extent):
                raise TargetError(
                    f"the targets {other.name[:80]!r} and {extent.name[:80]!r} share a part of their memory",
                    hint="Give tensors that have their memory for themselves, or the same tensor for both names",
                )
        reaching.append(extent)
    return ties


def _span_of(name: str, tensor: Any, index: int) -> tuple[str, int, int, int] | None:
    """Return device, begin, end and number of a tensor.

    For many small tensors, only this tuple is created: Python's garbage collector visits a plain tuple of strings and
    numbers once, but an `Extent` in every collection.
    """
    if hasattr(tensor, "data_ptr") and not _refusal(tensor) and tensor.is_contiguous():
        try:
            address, size_bytes = tensor.data_ptr(), tensor.nbytes
            storage_bytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        except (NotImplementedError, RuntimeError) as error:
            _check_unaddressable(name, tensor, error)
            return None
        if size_bytes > storage_bytes:
            raise _freed(name)
        return (_text_of(tensor.device), address, address + size_bytes, index) if address and size_bytes else None
    extent = extent_of(name, tensor)
    return (extent.device, extent.begin, extent.end, index) if extent else None


def _check_writable(names: Sequence[str], spans: Iterable[tuple[str, int, int, int]]) -> None:
    read_only = ReadOnlyMemory()
    for device, begin, end, index in spans:
        if device == "cpu" and read_only.holds_part_of(begin, end):
            raise TargetError(
                f"the memory of the target {names[index][:80]!r} is read-only",
                hint="Give a tensor in writable memory; a file has such memory if it is mapped with MAP_PRIVATE",
            )


def _overlapping(spans: Iterable[tuple[str, int, int, int]]) -> list[int]:
    """Return the numbers of the spans that overlap another one; in a model, usually only those of tied tensors."""
    ordered = sorted(spans)
    return sorted(ordered[at][3] for begin, end in _runs(ordered) if end - begin > 1 for at in range(begin, end))


def _runs(ordered: Sequence[tuple[str, int, int, int]]) -> Iterator[tuple[int, int]]:
    """Split sorted spans into runs of overlapping spans: a run begins behind the end of all spans before it."""
    first = reach = 0
    on = ""
    for at, (device, begin, end, _) in enumerate(ordered):
        if begin >= reach or device != on:
            yield first, at
            first, on, reach = at, device, end
        elif end > reach:
            reach = end
    yield first, len(ordered)


def _refusal(tensor: Any) -> str | None:
    if tensor.is_meta:
        return "is on the meta device and has no memory"
    if _text_of(tensor.layout) != "torch.strided":
        return f"is laid out as {tensor.layout}"
    return None


@cache
def _text_of(value: Any) -> str:
    """Return the text of a device or a layout; cached, as there are only a few."""
    return str(value)


def _check_unaddressable(name: str, tensor: Any, error: Exception) -> None:
    """Refuse a CPU tensor without an address; on any other device, torch copies into such a tensor."""
    if tensor.device.type == "cpu":
        raise opaque(name, tensor) from error


def _freed(name: str) -> TargetError:
    return TargetError(f"the memory of the target {name[:80]!r} was freed", hint="Resize its storage first")


def _extent_of_array(name: str, array: Any) -> Extent | None:
    if array.flags.c_contiguous:
        return _row(name, "cpu", array.ctypes.data, array.nbytes)
    return _extent((name, "cpu", array.itemsize), array.ctypes.data, array.shape, array.strides)


def _row(name: str, device: str, address: int, size_bytes: int) -> Extent | None:
    return Extent(name, device, address, address + size_bytes, address, 1, (size_bytes,), (1,)) if size_bytes else None


def _extent(what: tuple[str, str, int], first: int, shape: Iterable[int], strides: Iterable[int]) -> Extent | None:
    name, device, item_bytes = what
    if 0 in shape:
        return None
    kept = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
    sizes, steps = tuple(size for size, _ in kept), tuple(stride for _, stride in kept)
    elements = Elements(device, first, item_bytes, sizes, steps)
    if elements.meet():
        raise TargetError(
            f"elements of the target {name[:80]!r} share memory: its strides are {strides} bytes",
            hint="Give a tensor that has its memory for itself, for instance its clone()",
        )
    _, begin, end = elements.span()
    return Extent(name, device, begin, end, first, item_bytes, sizes, steps)


def _by_begin(extent: Extent) -> tuple[str, int]:
    return extent.device, extent.begin


def _are_tied(one: Extent, other: Extent) -> bool:
    return one[1:] == other[1:]


def _share(one: Extent, other: Extent) -> bool:
    """Say whether two overlapping extents have a byte in common: columns of one matrix have none."""
    ranges = [Elements(each.device, each.first, *each[5:]).ranges() for each in (one, other)]
    return ranges[0] is None or ranges[1] is None or ranges[0].meets(ranges[1])
