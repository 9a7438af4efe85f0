"""Names that torch keeps for itself, and that nothing public replaces: of tensors' memory, and of what modules run.

No other file uses one, as of the libraries in ``backends/private_names/``. Tried with torch 2.13.0. It is imported by
whoever has a tensor of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "address_of_storage",
    "is_without_memory",
    "is_wrapped",
    "load_post_hooks",
    "load_pre_hooks",
    "own_loader",
]


def address_of_storage(storage: Any) -> int:
    """Return where the C++ object behind an `UntypedStorage` lies; not where its bytes do."""
    address: int = storage._cdata
    return address


def is_wrapped(torch: Any) -> Callable[[Any], bool]:
    """Return torch's test for a tensor inside a transform of `torch.func`; a torch without one says no of each."""
    functorch = getattr(torch._C, "_functorch", None)
    test: Callable[[Any], bool] = getattr(functorch, "is_functorch_wrapped_tensor", _no)
    return test


def is_without_memory(torch: Any) -> Callable[[Any], bool]:
    """Return torch's test for a tensor of zeros that has no memory; a torch without one says no of each."""
    test: Callable[[Any], bool] = getattr(torch, "_is_zerotensor", _no)
    return test


def load_pre_hooks(module: Any) -> list[Any]:
    """Return what a module runs before ``load_state_dict`` copies into it."""
    wrapped: Mapping[int, Any] = module._load_state_dict_pre_hooks
    return [getattr(each, "hook", each) for each in wrapped.values()]


def load_post_hooks(module: Any) -> list[Callable[[Any, Any], None]]:
    """Return what a module runs when ``load_state_dict`` has copied into it."""
    hooks: Mapping[int, Callable[[Any, Any], None]] = module._load_state_dict_post_hooks
    return list(hooks.values())


def own_loader(module: Any) -> Any:
    """Return the function that copies into a module of this class, if the class has one of its own."""
    import torch  # noqa: PLC0415  a module of it exists

    own = type(module)._load_from_state_dict
    return None if own is torch.nn.Module._load_from_state_dict else own


def _no(_: Any) -> bool:
    return False
