"""Where the caller's tensors lay when a load began, and what they were: what replaces their memory meanwhile is told.

``x.data = …``, ``x.set_(…)``, ``x.share_memory_()`` and ``module.half()`` do so; an array's shape and dtype can be set.
"""

from __future__ import annotations

from typing import Any

from streamer.core.errors import TargetError

__all__ = ["Homes"]


class Homes:
    """Remembers tensors, column by column: rows of 100 000 of them would keep the garbage collector busy."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._seen: list[Any] = []
        self._addresses: list[int] = []

    def add(self, name: str, tensor: Any, seen: Any) -> None:
        """Remember one.

        Args:
            name: The tensor's.
            tensor: The caller's own.
            seen: What is filled: the same array, or torch's ``tensor.data``, which keeps shape, dtype and device.
        """
        self._names.append(name)
        self._tensors.append(tensor)
        is_torch = hasattr(tensor, "data_ptr")
        self._seen.append(seen if is_torch else (tensor.shape, tensor.dtype))
        self._addresses.append(_address(tensor))

    def check_unmoved(self) -> None:
        """Refuse to call those filled whose memory was replaced meanwhile.

        Raises:
            TargetError: the bytes of one went to memory that is no longer its own, or it got another shape or dtype.
        """
        for name, tensor, seen, address in zip(self._names, self._tensors, self._seen, self._addresses, strict=True):
            if _address(tensor) != address or not _is_alike(tensor, seen):
                raise TargetError(f"the memory of the target {name[:80]!r} was replaced while it was filled")


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data)


def _is_alike(tensor: Any, seen: Any) -> bool:
    if isinstance(seen, tuple):
        return (tensor.shape, tensor.dtype) == seen
    return bool(tensor.shape == seen.shape and tensor.dtype == seen.dtype and tensor.device == seen.device)
