"""Records address, shape and dtype of the caller's tensors when a load begins, to detect changes during the load.

``x.data = …``, ``x.set_(…)``, ``x.share_memory_()`` and ``module.half()`` replace a tensor's memory; an array's shape
and dtype can be set.
"""

from __future__ import annotations

from typing import Any

from streamer.core.errors import TargetError

__all__ = ["TargetStates"]


class TargetStates:
    """The states of the targets, in four lists: one object for each of 100 000 targets would burden the collector."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._states: list[Any] = []
        self._addresses: list[int] = []

    def add(self, name: str, tensor: Any, filled: Any) -> None:
        """Keep the state of one target.

        Args:
            name: The name of the tensor.
            tensor: The caller's own tensor.
            filled: The same array, or torch's ``tensor.data``, which keeps its shape, dtype and device.
        """
        self._names.append(name)
        self._tensors.append(tensor)
        is_torch = hasattr(tensor, "data_ptr")
        self._states.append(filled if is_torch else (tensor.shape, tensor.dtype))
        self._addresses.append(_address(tensor))

    def check_unchanged(self) -> None:
        """Check that every target still has its memory, shape and dtype.

        Raises:
            TargetError: a target got other memory, another shape or another dtype during the load.
        """
        for name, tensor, state, address in zip(self._names, self._tensors, self._states, self._addresses, strict=True):
            if _address(tensor) != address or not _is_alike(tensor, state):
                raise TargetError(f"the memory of the target {name[:80]!r} was replaced while it was filled")


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data)


def _is_alike(tensor: Any, state: Any) -> bool:
    if isinstance(state, tuple):
        return (tensor.shape, tensor.dtype) == state
    return bool(tensor.shape == state.shape and tensor.dtype == state.dtype and tensor.device == state.device)
