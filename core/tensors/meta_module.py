"""Tensors of an ``nn.Module`` on the meta device, which have a shape and no memory: loaded ones take their place.

Guarantees: a module is changed only by `assign`, which replaces all of them; parameters stay parameters, with their
``requires_grad`` and their own attributes, and what was one tensor under two names stays one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamer.core.errors import TargetError

__all__ = ["MetaModule"]

NAMED = 5  # names shown in a remark


class _Place(NamedTuple):
    """An attribute of a submodule that holds a tensor on the meta device."""

    owner: Any
    attribute: str
    tensor: Any


class MetaModule:
    """The meta tensors of one target.

    Args:
        target: An ``nn.Module``; a mapping or anything else has none that can be replaced.
    """

    def __init__(self, target: Any) -> None:
        self._places = dict(_places_in(target)) if callable(getattr(target, "named_modules", None)) else {}
        self._assigned: set[str] = set()

    def replaceable(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Choose those of the named tensors that are on the meta device and can be replaced.

        Args:
            tensors: As the module's ``state_dict`` names them.

        Raises:
            TargetError: one is of a class of its own, which nobody else can make.
        """
        chosen = {}
        for name, tensor in tensors.items():
            if name in self._places and self._places[name].tensor is tensor:
                _check_class(name, tensor)
                chosen[name] = tensor
        return chosen

    def assign(self, loaded: Mapping[str, Any]) -> None:
        """Put tensors in the place of those on the meta device, under all of their names."""
        made: dict[int, Any] = {}
        for name, tensor in loaded.items():
            old = self._places[name].tensor
            if id(old) not in made:
                made[id(old)] = _like(old, tensor)
        for name, place in self._places.items():
            if id(place.tensor) in made:
                setattr(place.owner, place.attribute, made[id(place.tensor)])
                self._assigned.add(name)

    def remarks(self) -> list[str]:
        """Say which were not in the checkpoint: parameters, and buffers that a module makes by itself."""
        left = [name for name in self._places if name not in self._assigned]
        if not left:
            return []
        shown = ", ".join(left[:NAMED]) + (", …" if len(left) > NAMED else "")
        return [f"these tensors of the target stay on the meta device: {shown}"]


def _places_in(module: Any) -> Iterator[tuple[str, _Place]]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for named in (owner.named_parameters, owner.named_buffers):
            for attribute, tensor in named(recurse=False, remove_duplicate=False):
                if getattr(tensor, "is_meta", False):
                    yield (f"{prefix}.{attribute}" if prefix else attribute), _Place(owner, attribute, tensor)


def _check_class(name: str, tensor: Any) -> None:
    torch = sys.modules["torch"]  # imported, as the tensor is one of its own
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TargetError(
            f"the target of tensor {name[:80]!r} is a {type(tensor).__name__} on the meta device",
            hint="Give it memory first, for instance with the module's to_empty(device=…)",
        )


def _like(old: Any, tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(old, torch.nn.Parameter):
        return tensor
    parameter = torch.nn.Parameter(tensor, requires_grad=old.requires_grad)
    vars(parameter).update(vars(old))
    return parameter
