"""Names that torch keeps for itself, and that nothing public replaces: of tensors that have no memory of their own.

No other file uses one, as of the libraries in ``backends/private_names/``. Tried with torch 2.13.0. It is imported by
whoever has a tensor of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["address_of_storage", "is_without_memory", "is_wrapped"]


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


def _no(_: Any) -> bool:
    return False
