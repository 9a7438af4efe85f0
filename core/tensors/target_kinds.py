"""Checks that a tensor of the caller is plain memory that can be filled, before its memory is inspected.

Refuses tensors that keep their values elsewhere than plain tensors do: subclasses with a ``__torch_dispatch__`` (such
as fake and masked tensors), tensors inside a transform of ``torch.func``, nested tensors, zero tensors without memory,
lazy parameters without a shape. Refuses every object whose attributes raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from streamer.core.errors import TargetError
from streamer.core.tensors import torch_private_names

__all__ = ["check_kind", "opaque"]


def check_kind(name: str, tensor: Any) -> None:
    """Check that a target is a plain tensor or a plain array.

    Raises:
        TargetError: it is neither.
    """
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
