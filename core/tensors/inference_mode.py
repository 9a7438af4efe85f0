"""Makes normal tensors also under ``torch.inference_mode``.

A tensor that torch makes in this mode can never be written outside of it, nor trained as a parameter. The mode belongs
to a thread, so the same load would return other tensors in another thread (`aload`).
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

__all__ = ["normal_tensors"]


def normal_tensors() -> AbstractContextManager[object]:
    """Return a context in which torch makes normal tensors; it does nothing if torch already does, or is not imported.

    Example:
        >>> with normal_tensors():
        ...     pass
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        return nullcontext()
    mode: AbstractContextManager[object] = torch.inference_mode(mode=False)
    return mode
