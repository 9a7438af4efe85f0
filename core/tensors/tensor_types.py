"""The type of the returned tensors, for type checkers: it depends on ``framework=``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

__all__ = ["NumpyName", "TensorT", "TorchName"]

TorchName: TypeAlias = Literal["pt", "torch", "pytorch"]
NumpyName: TypeAlias = Literal["np", "numpy"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    TensorT = TypeVar("TensorT", default=Any)  # the default allows a generic class without a parameter as a type
else:
    from typing import TypeVar

    TensorT = TypeVar("TensorT")
