"""Which tensors of the caller's are plain memory, so that they can be filled. Asked before their memory is looked at.

Refuses what keeps its values elsewhere than torch's own tensors do: subclasses with a ``__torch_dispatch__`` (fake,
masked and distributed tensors among them), tensors inside a transform of ``torch.func``, nested ones, tensors of zeros
alone; and whatever cannot be asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from streamer.core.errors import TargetError
from streamer.core.tensors import torch_private_names

__all__ = ["check_kind", "strange"]


def check_kind(name: str, tensor: Any) -> None:
    """Refuse what is neither a plain tensor nor a plain array.

    Raises:
        TargetError: it is not.
    """
    try:
        reason = _reason_against(tensor) if hasattr(tensor, "data_ptr") else _reason_against_array(tensor)
    except Exception as error:
        raise strange(name, tensor) from error
    if reason is not None:
        raise TargetError(f"the target of tensor {name[:80]!r} {reason}", hint=_HINT)


def strange(name: str, tensor: Any) -> TargetError:
    """Say that a tensor raised what it should have answered."""
    return TargetError(
        f"the target of tensor {name[:80]!r} is a {type(tensor).__name__}, which does not tell its memory", hint=_HINT
    )


_HINT = "Give a plain tensor: that inside of it, where it wraps one"


def _reason_against(tensor: Any) -> str | None:
    dispatch, is_wrapped, is_zero = _of_torch()
    kind = type(tensor)
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
def _of_torch() -> tuple[object, Callable[[Any], bool], Callable[[Any], bool]]:
    torch = sys.modules["torch"]  # a tensor of it is there
    is_wrapped, is_zero = torch_private_names.is_wrapped(torch), torch_private_names.is_without_memory(torch)
    return torch.Tensor.__torch_dispatch__, is_wrapped, is_zero
