"""Matches the tensors of a checkpoint with tensors that the caller already has.

Everything is checked before the first byte is read: names, shapes, dtypes, and that no two targets share memory. Bytes
go straight into a target that is contiguous, on the CPU or on a CUDA device. Any other target is filled by a copy once
its tensor has arrived, on the same device where that is a CUDA device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.near_names import prefix_hint
from streamer.core.errors import TargetError
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.frameworks import Framework
from streamer.core.tensors.resize_lock import ResizeLock
from streamer.core.tensors.target_kinds import check_kind
from streamer.core.tensors.target_memory import check_all_apart
from streamer.core.tensors.target_states import TargetStates

__all__ = ["Targets", "bytes_at", "match_targets", "tensors_of"]

NAMED = 5  # names shown in a message
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Targets:
    """Where each wanted tensor goes.

    Attributes:
        addresses: Name to address, for those the engine fills in place.
        devices: Name to device (`streamer.core.engine.plan.Item`), for those on a CUDA device that the engine fills,
            itself or through a tensor beside them.
        in_place: Name to tensor, for the same.
        copies: Name to tensor, for those that are copied into when they arrive.
        device_paths: How they get to their devices, as `Devices.path`.
        tied: Name to the other name under which the same memory is filled, and the tensor; compared at the end.
        fresh: Name to tensor on the meta device, for those that are replaced by loaded ones.
        fresh_ties: Of these, name to the other name of the same tensor; compared at the end.
        lock: Keeps the memory of all targets where it is; the caller releases it.
        states: Of the caller's own tensors, when the load began.
    """

    lock: ResizeLock
    states: TargetStates = field(default_factory=TargetStates)
    addresses: dict[str, int] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    in_place: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, Any] = field(default_factory=dict)
    device_paths: set[str] = field(default_factory=set)
    tied: dict[str, tuple[str, Any]] = field(default_factory=dict)
    fresh: dict[str, Any] = field(default_factory=dict)
    fresh_ties: dict[str, str] = field(default_factory=dict)


def tensors_of(target: Any) -> Mapping[str, Any]:
    """Give the named tensors of an ``nn.Module`` (parameters and buffers, tied ones included) or of a mapping.

    Raises:
        TargetError: `target` is neither.
    """
    if isinstance(target, Mapping):
        return target
    state_dict = getattr(target, "state_dict", None)
    if not callable(state_dict) or isinstance(target, type):
        raise TargetError(f"a target is an nn.Module or a mapping of tensors, not {type(target).__name__}")
    named: Mapping[str, Any] = state_dict(keep_vars=True)
    return named


def match_targets(
    wanted: list[ShardTensor],
    tensors: Mapping[str, Any],
    framework: Framework,
    *,
    strict: bool,
    fresh: Mapping[str, Any] = _NONE,
) -> tuple[list[ShardTensor], Targets]:
    """Pair wanted tensors with targets.

    Args:
        wanted: What is to be read.
        tensors: The targets by name.
        framework: Their library; its devices are those of `fresh`.
        strict: Each has a partner.
        fresh: Those of the targets that have no memory, and are replaced by loaded tensors.

    Returns:
        The tensors to read, and where they go.

    Raises:
        TargetError: names do not match (`strict`), or none does; a shape or dtype differs; or two targets share a part
            of their memory.
    """
    names = {each.entry.name for each in wanted}
    if strict:
        _check_names(names, tensors)
    matched = [each for each in wanted if each.entry.name in tensors]
    if wanted and not matched:
        raise TargetError(
            f"the checkpoint holds no tensor of the target's: it holds {_some(sorted(names))}",
            hint=_prefix_hint(names, tensors) or f"The target has {_some(sorted(map(str, tensors)))}",
        )
    kept = [each for each in matched if each.entry.name not in fresh]
    checked = [_checked(tensors[each.entry.name], each, framework) for each in kept]
    lock = ResizeLock(checked)  # before an address is taken
    try:
        ties = check_all_apart([each.entry.name for each in kept], checked)
        targets = _placed(kept, checked, framework, lock, ties)
        for each, filled in zip(kept, checked, strict=True):
            targets.states.add(each.entry.name, tensors[each.entry.name], filled)
        _add_fresh(targets, [each for each in matched if each.entry.name in fresh], fresh, framework)
        return matched, targets
    except BaseException:
        lock.release()
        raise


def bytes_at(tensor: Any, entry: TensorEntry) -> memoryview | None:
    """Give the bytes of a target the engine filled in place; None for an empty one, or one on a device."""
    address = _address(tensor, is_filled_on_device=False)
    size_bytes = entry.end - entry.begin
    if address is None or not size_bytes:
        return None
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B")


def _check_names(names: set[str], tensors: Mapping[str, Any]) -> None:
    missing = [name for name in tensors if name not in names]
    if missing:  # one of several tied tensors is enough
        filled = {_storage(tensors[name]) for name in names if name in tensors}
        missing = [name for name in missing if _storage(tensors[name]) not in filled]
    unexpected = sorted(name for name in names if name not in tensors)
    if missing:
        raise TargetError(
            f"the checkpoint lacks {len(missing)} of the target's tensors: {_some(missing)}",
            hint=_prefix_hint(names, tensors) or "Pass strict=False to leave them as they are",
        )
    if unexpected:
        raise TargetError(
            f"the target lacks {len(unexpected)} of the checkpoint's tensors: {_some(unexpected)}",
            hint=_prefix_hint(names, tensors) or "Pass strict=False to skip them, or choose with names=",
        )


def _checked(tensor: Any, shard_tensor: ShardTensor, framework: Framework) -> Any:
    check_kind(shard_tensor.entry.name, tensor)
    tensor = tensor.data if hasattr(tensor, "data_ptr") else tensor  # past autograd
    _check_alike(tensor, shard_tensor, framework)
    return tensor


def _check_alike(tensor: Any, shard_tensor: ShardTensor, framework: Framework) -> None:
    entry = shard_tensor.entry
    shape, dtype = framework.shape(entry), framework.final_dtype(entry)
    if tensor.shape != shape:
        raise TargetError(f"tensor {entry.name[:80]!r} has shape {list(shape)}, its target {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise TargetError(
            f"tensor {entry.name[:80]!r} is {dtype}, its target {tensor.dtype}",
            hint="Give dtype= to cast on the way, or cast the target",
        )


def _placed(
    kept: list[ShardTensor], checked: list[Any], framework: Framework, lock: ResizeLock, ties: Mapping[str, str]
) -> Targets:
    targets = Targets(lock)
    for shard_tensor, tensor in zip(kept, checked, strict=True):
        name = shard_tensor.entry.name
        device = framework.devices.engine_device_of(tensor)
        if device != _native.HOST:
            targets.devices[name] = device
        targets.device_paths.add(framework.devices.path_of(tensor))
        is_cast = framework.dtype(shard_tensor.entry) != tensor.dtype
        address = None if is_cast else _address(tensor, is_filled_on_device=device != _native.HOST)
        if name in ties:  # no byte may have two writers
            targets.tied[name] = ties[name], tensor
        elif address is None:
            targets.copies[name] = tensor
        else:
            targets.addresses[name] = address
            targets.in_place[name] = tensor
    return targets


def _add_fresh(targets: Targets, wanted: list[ShardTensor], fresh: Mapping[str, Any], framework: Framework) -> None:
    first_names: dict[int, str] = {}
    for each in wanted:
        name = each.entry.name
        targets.fresh[name] = tensor = fresh[name]
        _check_alike(tensor, each, framework)
        targets.devices[name] = framework.devices.engine_device(name)
        targets.device_paths.add(framework.devices.path(name))
        first = first_names.setdefault(id(tensor), name)
        if first != name:
            targets.fresh_ties[name] = first


def _address(tensor: Any, *, is_filled_on_device: bool) -> int | None:
    """Address of a tensor whose bytes the engine may write in place; None for any other."""
    if hasattr(tensor, "data_ptr"):
        in_place = (is_filled_on_device or tensor.device.type == "cpu") and tensor.is_contiguous()
        return int(tensor.data_ptr()) or None if in_place else None
    flags = tensor.flags
    return int(tensor.ctypes.data) if flags.c_contiguous and flags.writeable and tensor.size else None


def _storage(tensor: Any) -> object:
    """Identify the memory that two tied tensors have in common."""
    with suppress(Exception):  # a target that is no plain tensor is refused later, where it would be filled
        if hasattr(tensor, "untyped_storage") and str(tensor.layout) == "torch.strided" and not tensor.is_meta:
            storage = tensor.untyped_storage().data_ptr()
            return (str(tensor.device), storage, tensor.storage_offset(), tuple(tensor.shape))
    return id(tensor)


def _prefix_hint(names: set[str], tensors: Mapping[str, Any]) -> str | None:
    return prefix_hint(names, [name for name in tensors if isinstance(name, str)])


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(str(name)[:80]) for name in names[:NAMED])
    return shown + (", …" if len(names) > NAMED else "")
