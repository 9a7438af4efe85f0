"""Tensors that are made under ``torch.inference_mode`` as they are made outside of it.

A tensor that torch makes under it can never be written outside, nor trained as a parameter. The mode is of a thread, so
that the same load would give other tensors in a thread of its own (`aload`).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

__all__ = ["normal_tensors"]


def normal_tensors() -> AbstractContextManager[object]:
    """Return a context in which torch makes normal tensors; an empty one if it does so anyway, or is not imported.

    Example:
        >>> with normal_tensors():
        ...     pass
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        return nullcontext()
    mode: AbstractContextManager[object] = torch.inference_mode(mode=False)
    return mode
