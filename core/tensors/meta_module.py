"""Tensors of an ``nn.Module`` on the meta device, which have no memory: loaded tensors replace them.

Guarantees: only `assign` changes a module. Parameters stay parameters, with their ``requires_grad`` and their own
attributes. One tensor under two names stays one tensor. DTensors stay DTensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamer.core.errors import TargetError
from streamer.core.tensors.sharded_tensors import is_sharded, like_sharded
from streamer.core.tensors.target_memory import check_kind
from streamer.core.tensors.torch_modes import normal_tensors

__all__ = ["MetaModule"]

MOST_SHOWN = 5  # names shown in a remark


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
