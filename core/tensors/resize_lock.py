"""Keeps the memory of the caller's tensors where it is while something else writes into it.

Guarantees: until `ResizeLock.release`, `resize_` of a torch tensor or of its storage, and `resize` of a numpy array,
raise where they are called; else they free the memory, and what the engine writes lands in whatever has it next.
Afterwards all is as it was. Does not stop what replaces memory as a whole (`share_memory_`, ``array.data = …``), nor
the resizing of an array that torch wraps (`from_numpy`): torch does not say whose memory it is.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from streamer.core.tensors.torch_private_names import address_of_storage

__all__ = ["ResizeLock"]

# No storage of torch is smaller, and the flag lies in its first half.
LOOKED_AT_BYTES = 80

_mutex = threading.RLock()  # a lock that is collected may be given back while another is made
# How many locks a storage is in, by its address; only of those that could be resized before.
_locked: dict[int, int] = {}


class ResizeLock:
    """Locks the memory of tensors from its making on; given back when it is released, or with its last reference.

    Several may lock the same memory: the last one to go gives it back. Any thread may release it, any number of times.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._held: _Held | None = _Held(tensors)

    def shared(self) -> ResizeLock:
        """Lock the same memory once more, at no cost."""
        other = ResizeLock(())
        other._held = self._held
        return other

    def release(self) -> None:
        """Let the memory be resized again, unless it is locked by others."""
        self._held = None


class _Held:
    """Memory that is locked as long as anything refers to this."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        storages: list[Any] = []
        weakref.finalize(self, _give_back, storages).atexit = False
        self._references: list[weakref.ref[Any]] = []
        for tensor in tensors:
            if not hasattr(tensor, "data_ptr"):
                self._references.append(_referred_to(tensor))
            elif (storage := _locked_storage(tensor)) is not None:
                storages.append(storage)


def _referred_to(array: Any) -> weakref.ref[Any]:
    """Numpy resizes no array with a weak reference, whatever `refcheck` says; exported buffers do not stop it."""
    while isinstance(array.base, np.ndarray):  # the one that owns the memory
        array = array.base
    return weakref.ref(array)


def _locked_storage(tensor: Any) -> Any:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a subclass that has none
        return None
    with _mutex:
        address = address_of_storage(storage)
        if address in _locked:
            _locked[address] += 1
            return storage
        offset = _flag_offset()
        if offset is None:
            _lock_for_good(tensor, storage)
            return None
        flag = ctypes.c_bool.from_address(address + offset)
        if not flag.value:  # it was never ours to resize: shared memory, a mapped file, another library's
            return None
        flag.value = False
        _locked[address] = 1
        return storage


def _give_back(storages: list[Any]) -> None:
    with _mutex:
        for storage in storages:
            address = address_of_storage(storage)
            _locked[address] -= 1
            if _locked[address] == 0:
                del _locked[address]
                ctypes.c_bool.from_address(address + (_flag_offset() or 0)).value = True


@cache
def _flag_offset() -> int | None:
    """Where a storage keeps whether it may be resized; None where this torch does not show it.

    torch turns the flag off in `Tensor.numpy`, has no way to turn it on again, and none at all for CUDA. So it is
    watched while it does, and the one byte that changes is the flag.
    """
    import torch  # noqa: PLC0415  a target of torch's is there, so torch is too

    tensor = torch.empty(1, dtype=torch.uint8)
    storage = tensor.untyped_storage()
    before = ctypes.string_at(address_of_storage(storage), LOOKED_AT_BYTES)
    tensor.numpy()
    after = ctypes.string_at(address_of_storage(storage), LOOKED_AT_BYTES)
    changes = [(offset, *bytes_) for offset, bytes_ in enumerate(zip(before, after, strict=True)) if len({*bytes_}) > 1]
    if [(was, now) for _, was, now in changes] != [(1, 0)]:
        return None
    offset: int = changes[0][0]
    ctypes.c_bool.from_address(address_of_storage(storage) + offset).value = True
    return offset if storage.resizable() else None


def _lock_for_good(tensor: Any, storage: Any) -> None:
    import torch  # noqa: PLC0415  as above

    if tensor.device.type == "cpu":
        torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
