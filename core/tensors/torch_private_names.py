"""Private names of torch without a public replacement: for the memory of tensors, hooks of modules and operations.

No other file uses private names of torch, as for the libraries in ``backends/private_names/``. Tried with torch 2.13.0.
The functions assume that torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any


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


def alias(torch: Any, tensor: Any) -> Any:
    """Return a plain tensor of the same memory, whatever the class of `tensor` does with calls of torch's functions."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def dispatch_mode(torch: Any) -> Any:
    """Return the base class of modes that see each operation of their thread."""
    return torch.utils._python_dispatch.TorchDispatchMode


def without_dispatch_modes(torch: Any) -> AbstractContextManager[object]:
    """Return a context in which no mode sees the operations of this thread."""
    context: AbstractContextManager[object] = torch.utils._python_dispatch._disable_current_modes()
    return context


def outside_torch_functions(torch: Any) -> AbstractContextManager[object]:
    """Return a context in which no mode and no class sees the calls of torch's functions in this thread."""
    context: AbstractContextManager[object] = torch._C.DisableTorchFunction()
    return context


def is_outside_torch_functions(torch: Any) -> bool:
    """Whether this thread is in the context of `outside_torch_functions`."""
    return bool(torch._C._is_torch_function_all_disabled())


def without_torch_function(torch: Any) -> Any:
    """Return the ``__torch_function__`` of a class whose operations all go to its ``__torch_dispatch__``."""
    return torch._C._disabled_torch_function_impl


def tensor_without_bytes(torch: Any, kind: Any, form: Any) -> Callable[..., Any]:
    """Return what makes tensors of a subclass with the geometry and dtype of another tensor, and without memory."""
    layout = {"strides": form.stride(), "storage_offset": form.storage_offset()}
    return partial(torch.Tensor._make_wrapper_subclass, kind, form.shape, dtype=form.dtype, **layout)


def is_composite(torch: Any, operation: Any) -> bool:
    """Whether an operation is made of others, into which it is divided only outside of inference mode."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd"))


def views_without_alias(torch: Any) -> Collection[Any]:
    """Return the operations that return a view, although they do not say so."""
    return torch.ops.aten._unsafe_view.default, torch.ops.aten.lift_fresh.default


def views_by_address(torch: Any) -> Collection[Any]:
    """Return the views whose arguments are places in the memory of a tensor."""
    return torch.ops.aten.as_strided.default, torch.ops.aten._reshape_alias.default


def copies(torch: Any) -> Collection[Any]:
    """Return the operations that return a copy of a tensor, in another layout, dtype or on another device."""
    return torch.ops.aten.clone.default, torch.ops.aten._to_copy.default


def written_arguments(operation: Any) -> list[tuple[int, str]]:
    """Return the positions and names of the arguments that an operation changes."""
    arguments = enumerate(operation._schema.arguments)
    return [(at, each.name) for at, each in arguments if each.alias_info is not None and each.alias_info.is_write]
