"""Private names of torch without a public replacement: for the memory of tensors, and for hooks of modules.

No other file uses private names of torch, as for the libraries in ``backends/private_names/``. Tried with torch 2.13.0.
The functions assume that torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "address_of_storage",
    "changes_in_place",
    "is_without_memory",
    "is_wrapped",
    "load_post_hooks",
    "load_pre_hooks",
    "own_loader",
]


def address_of_storage(storage: Any) -> int:
    """Return the address of the C++ object behind an `UntypedStorage`, not of its bytes."""
    address: int = storage._cdata
    return address


def changes_in_place(tensor: Any) -> int | None:
    """Return how often a tensor, or one that shares its memory, was changed in place; None if torch does not count."""
    count: int | None = None if tensor.is_inference() else tensor._version
    return count


def is_wrapped(torch: Any) -> Callable[[Any], bool]:
    """Return torch's test for a tensor inside a transform of `torch.func`; without one, a test that is always False."""
    functorch = getattr(torch._C, "_functorch", None)
    test: Callable[[Any], bool] = getattr(functorch, "is_functorch_wrapped_tensor", _never)
    return test


def is_without_memory(torch: Any) -> Callable[[Any], bool]:
    """Return torch's test for a zero tensor without memory; without one, a test that is always False."""
    test: Callable[[Any], bool] = getattr(torch, "_is_zerotensor", _never)
    return test


def load_pre_hooks(module: Any) -> list[Any]:
    """Return the hooks that a module runs before ``load_state_dict`` copies into it."""
    wrapped: Mapping[int, Any] = module._load_state_dict_pre_hooks
    return [getattr(each, "hook", each) for each in wrapped.values()]


def load_post_hooks(module: Any) -> list[Callable[[Any, Any], None]]:
    """Return the hooks that a module runs after ``load_state_dict`` has copied into it."""
    hooks: Mapping[int, Callable[[Any, Any], None]] = module._load_state_dict_post_hooks
    return list(hooks.values())


def own_loader(module: Any) -> Any:
    """Return the module's own function for copying a state dict into it; None if it uses torch's default."""
    import torch  # noqa: PLC0415  already imported: `module` is one of its modules

    own = type(module)._load_from_state_dict
    return None if own is torch.nn.Module._load_from_state_dict else own


def _never(_: Any) -> bool:
    return False
