"""Matches the tensors of a checkpoint with tensors that the caller already has.

Before the first byte is read, it checks shapes, dtypes, and that no two targets share memory. Bytes go directly into a
contiguous target, on the CPU or on a CUDA device. Any other target is filled by a copy once its tensor has arrived; for
a target on a CUDA device, the tensor arrives on that device. Only the local part of a DTensor is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.destinations import path_of_new
from streamer.core.checkpoint.tensor_parts import cut_out
from streamer.core.errors import TargetError
from streamer.core.format.header_entries import TensorEntry
from streamer.core.tensors.frameworks import Framework
from streamer.core.tensors.sharded_tensors import is_sharded, part_of
from streamer.core.tensors.target_memory import check_all_apart, check_kind
from streamer.core.tensors.target_states import ResizeLock, TargetStates

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Targets:
    """The targets of all wanted tensors, and how each is filled."""

    lock: ResizeLock  # prevents the memory of all targets from being resized; the caller releases it
    # The states of the caller's own tensors when the load began
    states: TargetStates = field(default_factory=TargetStates)
    # Name to address, for targets that the engine fills in place
    addresses: dict[str, int] = field(default_factory=dict)
    # Name to device (`streamer.core.engine.plan.Item`), for targets on a CUDA device whose bytes the engine puts there,
    # into the target or into a tensor that is then copied
    devices: dict[str, int] = field(default_factory=dict)
    in_place: dict[str, Any] = field(default_factory=dict)  # name to tensor, for the targets in `addresses`
    # Name to tensor, for targets that are filled by a copy when their tensor arrives
    copies: dict[str, Any] = field(default_factory=dict)
    device_paths: set[str] = field(default_factory=set)  # how the tensors get to their devices, as `Devices.path`
    # Name to the other name of the same memory, and to the target. The values are compared at the end.
    tied: dict[str, tuple[str, Any]] = field(default_factory=dict)
    # Name to tensor on the meta device, for targets that are replaced by loaded tensors
    fresh: dict[str, Any] = field(default_factory=dict)
    # Name to the other name of the same tensor in `fresh`. The values are compared at the end.
    fresh_ties: dict[str, str] = field(default_factory=dict)

    def fill_in_place(self, wanted: ShardTensor, framework: Framework) -> None:
        """Let the engine fill the target of a tensor itself, instead of by a copy, if nothing prevents that."""
        name = wanted.entry.name
        address = _place_of(self.copies[name], wanted, framework, name in self.devices) if name in self.copies else None
        if address is not None:
            self.addresses[name], self.in_place[name] = address, self.copies.pop(name)

    def bytes_in_place(self, entry: TensorEntry) -> memoryview | None:
        """Return the bytes of a target in `in_place` that was filled; None if it is empty or on a device."""
        address = _address(self.in_place[entry.name], is_filled_on_device=False)
        size_bytes = entry.end - entry.begin
        if address is None or not size_bytes:
            return None
        return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


def match_targets(
    wanted: list[ShardTensor],
    tensors: Mapping[str, Any],
    framework: Framework,
    *,
    fresh: Mapping[str, Any] = _NONE,
    takes_stored_dtypes: bool = False,
) -> tuple[list[ShardTensor], Targets]:
    """Assign each tensor to its target.

    Returns:
        The tensors to read, or parts of them, and their targets.
    """
    here = [_LocalPart.of(each, tensors[each.entry.name], framework) for each in wanted]
    kept = [each for each in here if each.name not in fresh]
    checked = [_checked(each, framework) for each in kept]
    lock = ResizeLock(checked)  # before an address is taken
    try:
        ties = check_all_apart([each.name for each in kept], checked)
        targets = _placed(kept, checked, framework, lock, ties)
        for each, filled in zip(kept, checked, strict=True):
            targets.states.add(each.name, each.target, filled)
        added = [each for each in here if each.name in fresh]
        _add_fresh(targets, added, tensors, framework, takes_stored_dtypes=takes_stored_dtypes)
        return [each.wanted for each in here], targets
    except BaseException:
        lock.release()
        raise


class _LocalPart(NamedTuple):
    """The part of a tensor that one target takes: the whole, or the local part of a DTensor."""

    name: str  # the name in the checkpoint
    wanted: ShardTensor  # the tensor, or the part, that is read
    target: Any  # the tensor that is filled
    shape: tuple[int, ...]  # the shape that the target must have

    @classmethod
    def of(cls, wanted: ShardTensor, target: Any, framework: Framework) -> _LocalPart:
        entry, shape = wanted.entry, framework.shape(wanted.kept)
        if not is_sharded(target):
            return cls(entry.name, wanted, target, shape)
        if wanted.cut is not None:
            hint = "Leave it out of slices=: its placements say which part is read"
            raise TargetError(f"the target of tensor {entry.name[:80]!r}, which slices= cuts, is a DTensor", hint=hint)
        _check_shape(entry.name, shape, target.shape)
        part = part_of(entry.name, target)
        here = tuple(each.stop - each.start for each in part.slices)
        read, cut = cut_out(entry, _stored(part.slices, entry, shape))
        return cls(entry.name, ShardTensor(wanted.shard, read, cut), part.local, here)


def _stored(slices: tuple[slice, ...], entry: TensorEntry, shape: tuple[int, ...]) -> list[slice]:
    """Convert slices of torch's tensor to slices of the stored tensor: torch packs two F4 values into one element."""
    packed = [stored // size if size else 1 for stored, size in zip(entry.shape, shape, strict=True)]
    return [slice(each.start * count, each.stop * count) for each, count in zip(slices, packed, strict=True)]


def _checked(here: _LocalPart, framework: Framework) -> Any:
    check_kind(here.name, here.target)
    tensor = here.target
    tensor = tensor.data if hasattr(tensor, "data_ptr") else tensor  # a tensor that autograd does not track
    _check_alike(tensor, here, framework)
    return tensor


def _check_alike(tensor: Any, here: _LocalPart, framework: Framework) -> None:
    _check_shape(here.name, here.shape, tensor.shape)
    entry = here.wanted.entry
    dtype = framework.final_dtype(entry)
    if tensor.dtype != dtype:
        hint = 'Pass dtype="target" to cast it' if framework.can_cast(entry, tensor.dtype) else "Cast the target"
        if getattr(tensor, "is_meta", False) and framework.can_cast(entry, tensor.dtype):
            hint = f'{hint}, or dtype="auto" to give the target the dtypes of the checkpoint'
        if dtype != framework.dtype(entry):  # the caller requests a cast
            hint = f'Convert the target to {dtype} first, or pass dtype="target"'
        if str(dtype).removeprefix("torch.") == str(tensor.dtype).removeprefix("torch."):  # of two libraries
            hint = 'Pass framework= as the library of the target: "pt" for torch, "np" for numpy'
        raise TargetError(f"tensor {here.name[:80]!r} is {dtype}, its target {tensor.dtype}", hint=hint)


def _check_shape(name: str, shape: tuple[int, ...], found: Any) -> None:
    if tuple(found) != shape:
        raise TargetError(f"tensor {name[:80]!r} has shape {list(shape)}, its target {list(found)}")


def _placed(
    kept: list[_LocalPart], checked: list[Any], framework: Framework, lock: ResizeLock, ties: Mapping[str, str]
) -> Targets:
    targets = Targets(lock)
    for here, tensor in zip(kept, checked, strict=True):
        name = here.name
        device = framework.devices.engine_device_of(tensor)
        if device != _native.HOST:
            targets.devices[name] = device
        targets.device_paths.add(framework.devices.path_of(tensor))
        address = _place_of(tensor, here.wanted, framework, device != _native.HOST)
        if name in ties:  # two threads must not write the same bytes
            targets.tied[name] = ties[name], tensor
        elif address is None:
            targets.copies[name] = tensor
        else:
            targets.addresses[name] = address
            targets.in_place[name] = tensor
    return targets


def _add_fresh(
    targets: Targets,
    added: list[_LocalPart],
    tensors: Mapping[str, Any],
    framework: Framework,
    *,
    takes_stored_dtypes: bool,
) -> None:
    first_names: dict[int, str] = {}
    for here in added:
        name = here.name
        targets.fresh[name] = here.target
        if takes_stored_dtypes and framework.can_cast(here.wanted.entry, here.target.dtype):
            _check_shape(name, here.shape, here.target.shape)
        else:
            _check_alike(here.target, here, framework)
        targets.devices[name] = framework.devices.engine_device(name)
        targets.device_paths.add(path_of_new(here.wanted, framework))
        first = first_names.setdefault(id(tensors[name]), name)
        if first != name:
            targets.fresh_ties[name] = first


def _place_of(tensor: Any, wanted: ShardTensor, framework: Framework, is_on_device: bool) -> int | None:
    """Return the address of a target that gets the bytes as they are stored; None for any other."""
    entry = wanted.entry
    is_as_stored = framework.dtype(entry) == tensor.dtype and tensor.nbytes == entry.end - entry.begin
    if wanted.cut is not None or not is_as_stored:
        return None
    return _address(tensor, is_filled_on_device=is_on_device)


def _address(tensor: Any, *, is_filled_on_device: bool) -> int | None:
    """Return the address of a tensor that the engine may fill in place; None for any other."""
    if hasattr(tensor, "data_ptr"):
        in_place = (is_filled_on_device or tensor.device.type == "cpu") and tensor.is_contiguous()
        is_as_stored = not (tensor.is_conj() or tensor.is_neg())  # a view whose values torch's copy converts
        return int(tensor.data_ptr()) or None if in_place and is_as_stored else None
    flags = tensor.flags
    return int(tensor.ctypes.data) if flags.c_contiguous and flags.writeable and tensor.size else None
