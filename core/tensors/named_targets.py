"""The named tensors of a target, which is an ``nn.Module`` or a mapping, and the load hooks of a module.

Refuses, before any request to a storage, a target without tensors to fill: a class, an optimizer, a module with
flattened parameters (FSDP1), or one whose ``state_dict`` returns newly made tensors: the module would not be filled.

A hook after ``load_state_dict`` gets a filled module, no matter what filled it, so it is run. A hook before it changes
the tensors that are about to be copied. Here nothing is copied, because bytes are read directly into the module's
tensors, so this hook is only reported.

Tensors of a module on the meta device have no memory, so loaded tensors replace them. Guarantees: only `assign` changes
a module. Parameters stay parameters, with their ``requires_grad`` and their own attributes. One tensor under two names
stays one tensor. DTensors stay DTensors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from streamer.core.errors import TargetError
from streamer.core.imported import if_imported
from streamer.core.tensors import torch_private_names
from streamer.core.tensors.sharded_tensors import is_sharded, like_sharded
from streamer.core.tensors.target_memory import check_kind
from streamer.core.tensors.torch_modes import normal_tensors

EXTRA_STATE = "_extra_state"  # the last part of the name under which a module saves other state than weights


def is_extra_state(name: str) -> bool:
    """Say whether a module saves other state than weights under this name: what its ``get_extra_state`` returns."""
    return name.rpartition(".")[2] == EXTRA_STATE


def tensors_of(target: Any) -> Mapping[str, Any]:
    """Return the named tensors of an ``nn.Module`` (parameters and buffers, tied ones included) or of a mapping."""
    if isinstance(target, Mapping):
        return target
    torch = if_imported("torch")
    module_class = getattr(getattr(torch, "nn", None), "Module", None)
    if module_class is None or not isinstance(target, module_class):
        raise _no_target(target, torch, module_class)
    _check_not_flat(target)
    named = target.state_dict(keep_vars=True)
    tensors = {name: tensor for name, tensor in named.items() if not is_extra_state(name)}
    _check_kept(target, tensors)
    return tensors


def _no_target(target: Any, torch: Any, module_class: Any) -> TargetError:
    hint = None
    if isinstance(target, type):
        hint = "Make a module of this class first" if module_class and issubclass(target, module_class) else None
    elif torch is not None and isinstance(target, torch.Tensor):
        hint = "Give it its name in the checkpoint: {name: tensor}"
    elif torch is not None and isinstance(target, torch.optim.Optimizer):
        hint = "Give the model that it optimizes; its own state is no checkpoint of weights"
    elif isinstance(target, (str, os.PathLike)):
        hint = "The checkpoint comes first, then its target: load_into(uri, target)"
    elif hasattr(target, "__next__") or isinstance(target, (list, tuple)):
        hint = "Tensors are found by their names: give the module itself, or dict(module.named_parameters())"
    return TargetError(f"a target is an nn.Module or a mapping of tensors, not {type(target).__name__}", hint=hint)


def _check_not_flat(module: Any) -> None:
    flat = getattr(if_imported("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if flat is not None and any(isinstance(each, flat) for each in module.modules()):
        raise TargetError(
            "the target is wrapped in FullyShardedDataParallel (FSDP1), which keeps its parameters in flat pieces",
            hint="Load before it is wrapped, or shard it with fully_shard (FSDP2), whose parameters are filled",
        )


def _check_kept(module: Any, tensors: Mapping[str, Any]) -> None:
    kept = [*module.parameters(), *module.buffers()]
    ids = set(map(id, kept))
    copies = [name for name, tensor in tensors.items() if id(tensor) not in ids and hasattr(tensor, "data_ptr")]
    if not copies:
        return
    memory = {_address(tensor) for tensor in kept}
    lost = [name for name in copies if _address(tensors[name]) not in memory]
    if lost:
        raise TargetError(
            f"the state_dict of the target makes a new {lost[0][:80]!r}: filling it would not fill the module",
            hint="Load before the module is converted or wrapped, or load() and give load_state_dict() the tensors",
        )


def _address(tensor: Any) -> object:
    with suppress(Exception):  # some tensors have no memory
        return tensor.untyped_storage().data_ptr() or id(tensor)
    return id(tensor)


MOST_SHOWN = 5  # names shown in a remark
# These hooks only undo what hooks of `state_dict` do: they rename wrapped modules and split gathered shards.
HARMLESS = "torch.distributed."


class _IncompatibleKeys(NamedTuple):
    """The second argument of a hook, as torch passes it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def run_post_hooks(module: Any, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Run hooks of ``register_load_state_dict_post_hook``, those of inner modules first, as torch does."""
    keys = _IncompatibleKeys(list(missing), list(unexpected))
    for each in _inner_modules_first(module) if hasattr(module, "named_modules") else ():
        for hook in torch_private_names.load_post_hooks(each):
            hook(each, keys)


def skipped_code(module: Any) -> list[str]:
    """Return a remark on modules whose code before ``load_state_dict`` was not run."""
    if not hasattr(module, "named_modules"):
        return []
    named = [
        f"{name or 'the module itself'} ({what})" for name, each in module.named_modules() for what in _pre_code(each)
    ]
    if not named:
        return []
    shown = ", ".join(named[:MOST_SHOWN]) + (", …" if len(named) > MOST_SHOWN else "")
    return [f"code that load_state_dict runs before it copies was skipped: {shown}"]


def _pre_code(module: Any) -> Iterator[str]:
    for hook in torch_private_names.load_pre_hooks(module):
        if not str(getattr(hook, "__module__", "")).startswith(HARMLESS):
            yield str(getattr(hook, "__qualname__", type(hook).__name__))[:80]
    loader = torch_private_names.own_loader(module)
    if loader is not None and not str(loader.__module__).startswith("torch."):
        yield loader.__qualname__[:80]


def _inner_modules_first(module: Any) -> Iterator[Any]:
    for child in module.children():
        yield from _inner_modules_first(child)
    yield module


class _Place(NamedTuple):
    """An attribute of a submodule that holds a tensor on the meta device."""

    name: str
    owner: Any
    attribute: str
    tensor: Any


class MetaModule:
    """The meta tensors of one target."""

    def __init__(self, target: Any) -> None:
        self._places = list(_places_in(target)) if callable(getattr(target, "named_modules", None)) else []
        self._saved: Mapping[str, Any] = {}
        self._assigned: set[int] = set()

    def replaceable(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named tensors that are on the meta device and can be replaced."""
        replaceable = {id(place.tensor) for place in self._places}
        self._saved = {name: tensor for name, tensor in tensors.items() if id(tensor) in replaceable}
        for name, tensor in self._saved.items():
            _check_class(name, tensor)
        return dict(self._saved)

    def assign(self, loaded: Mapping[str, Any]) -> None:
        """Replace tensors on the meta device by loaded ones, under all of their names."""
        new_tensors: dict[int, Any] = {}
        for name, tensor in loaded.items():
            old = self._saved[name]
            if id(old) not in new_tensors:
                with normal_tensors():
                    new_tensors[id(old)] = _like(old, tensor)
        for place in self._places:
            if id(place.tensor) in new_tensors:
                setattr(place.owner, place.attribute, new_tensors[id(place.tensor)])
        self._assigned.update(new_tensors)

    def remarks(self) -> list[str]:
        """Return remarks on tensors that stay on the meta device: missing ones, and buffers that are not saved."""
        left = [place for place in self._places if id(place.tensor) not in self._assigned]
        saved = {id(tensor) for tensor in self._saved.values()}
        unsaved = [place.name for place in left if id(place.tensor) not in saved]
        lacking = [place.name for place in left if id(place.tensor) in saved]
        remarks = []
        if unsaved:
            remarks.append(
                f"these buffers stay on the meta device, as their module does not save them: {_first_few(unsaved)}."
                " Make the module under accelerate.init_empty_weights(), which leaves buffers their values, or set them"
            )
        if lacking:
            remarks.append(f"these tensors of the target stay on the meta device: {_first_few(lacking)}")
        return remarks


def _places_in(module: Any) -> Iterator[_Place]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for named in (owner.named_parameters, owner.named_buffers):
            for attribute, tensor in named(recurse=False, remove_duplicate=False):
                if getattr(tensor, "is_meta", False):
                    yield _Place(f"{prefix}.{attribute}" if prefix else attribute, owner, attribute, tensor)


def _check_class(name: str, tensor: Any) -> None:
    torch = sys.modules["torch"]  # imported: `tensor` is a torch tensor
    if is_sharded(tensor):
        return
    check_kind(name, tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TargetError(
            f"the target of tensor {name[:80]!r} is a {type(tensor).__name__} on the meta device",
            hint="Give it memory first, for instance with the module's to_empty(device=…)",
        )
    if tensor.layout != torch.strided:
        raise TargetError(
            f"the target of tensor {name[:80]!r} is laid out as {tensor.layout}", hint="Make it dense: to_dense()"
        )


def _like(old: Any, tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if is_sharded(old):
        tensor = like_sharded(old, tensor)
    if not isinstance(old, torch.nn.Parameter):
        return tensor
    parameter = torch.nn.Parameter(tensor, requires_grad=old.requires_grad)
    for name, value in vars(old).items():
        vars(parameter).setdefault(name, value)
    return parameter


def _first_few(names: list[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (", …" if len(names) > MOST_SHOWN else "")
