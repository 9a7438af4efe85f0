"""Which type of tensor a caller gets, for type checkers: it follows from ``framework=``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

__all__ = ["NumpyName", "TensorT", "TorchName"]

TorchName: TypeAlias = Literal["pt", "torch", "pytorch"]
NumpyName: TypeAlias = Literal["np", "numpy"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    TensorT = TypeVar("TensorT", default=Any)  # so that the class alone, without a parameter, stays a type
else:
    from typing import TypeVar

    TensorT = TypeVar("TensorT")
