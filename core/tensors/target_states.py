"""Guards the caller's tensors while they are filled: no resize, no change unnoticed, and a new version for autograd.

``x.data = …``, ``x.set_(…)``, ``x.share_memory_()`` and ``module.half()`` replace a tensor's memory; an array's shape
and dtype can be set. Address, shape and dtype are recorded when a load begins, to detect such changes.

Guarantees: until `ResizeLock.release`, `resize_` of a torch tensor or of its storage, and `resize` of a numpy array,
raise in their caller; afterwards they work again. Without the lock they would free the memory, and the engine would
write into its next owner's data. The lock does not stop calls that replace the whole memory, nor resizing an array that
torch wraps (`from_numpy`), as torch does not expose the memory's owner.

The engine writes without an operation of torch, so autograd's version counters are incremented here. A backward pass
through earlier activations then raises, as after ``load_state_dict``, and does not combine new weights with old
activations.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from streamer.core.errors import TargetError
from streamer.core.imported import if_imported
from streamer.core.tensors.sharded_tensors import is_sharded
from streamer.core.tensors.torch_private_names import address_of_storage


class TargetStates:
    """The states of the targets, in four lists: one object for each of 100 000 targets would burden the collector."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Any] = []
        self._states: list[Any] = []
        self._addresses: list[int] = []

    def add(self, name: str, tensor: Any, filled: Any) -> None:
        """Keep the state of one target."""
        self._names.append(name)
        self._tensors.append(tensor)
        is_torch = hasattr(tensor, "data_ptr")
        self._states.append(filled if is_torch else (tensor.shape, tensor.dtype))
        self._addresses.append(_address(tensor))

    def check_unchanged(self) -> None:
        """Check that every target still has its memory, shape and dtype."""
        for name, tensor, state, address in zip(self._names, self._tensors, self._states, self._addresses, strict=True):
            if _address(tensor) != address or not _is_alike(tensor, state):
                raise TargetError(f"the memory of the target {name[:80]!r} was replaced while it was filled")


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data)


def _is_alike(tensor: Any, state: Any) -> bool:
    if isinstance(state, tuple):
        return (tensor.shape, tensor.dtype) == state
    return bool(tensor.shape == state.shape and tensor.dtype == state.dtype and tensor.device == state.device)


# Every storage object of torch has at least this size, and the flag lies in its first half.
INSPECTED_BYTES = 80

_mutex = threading.RLock()  # the garbage collector may release a lock while this thread takes another
# Number of locks by address of the storage; only for storages that were resizable before.
_locked: dict[int, int] = {}


class ResizeLock:
    """Locks the memory of tensors until `release`, or until the lock is garbage-collected.

    Several locks may hold the same memory: it can be resized after the last one is released. Any thread may release a
    lock, any number of times.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._memory: _LockedMemory | None = _LockedMemory(tensors)

    def shared(self) -> ResizeLock:
        """Lock the same memory once more, at no cost."""
        other = ResizeLock(())
        other._memory = self._memory
        return other

    def release(self) -> None:
        """Allow resizing again, unless other locks hold the memory."""
        self._memory = None


class _LockedMemory:
    """Memory that is locked as long as this object exists."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        storages: list[Any] = []
        weakref.finalize(self, _unlock, storages).atexit = False
        self._references: list[weakref.ref[Any]] = []
        for tensor in tensors:
            if not hasattr(tensor, "data_ptr"):
                self._references.append(_weak_reference_to(tensor))
            elif (storage := _locked_storage(tensor)) is not None:
                storages.append(storage)


def _weak_reference_to(array: Any) -> weakref.ref[Any]:
    """Prevent numpy from resizing an array: it refuses an array that has a weak reference, whatever `refcheck` is."""
    while isinstance(array.base, np.ndarray):  # up to the array that owns the memory
        array = array.base
    return weakref.ref(array)


def _locked_storage(tensor: Any) -> Any:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a subclass without a storage
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
        if not flag.value:  # it was never resizable: shared memory, a mapped file, memory of another library
            return None
        flag.value = False
        _locked[address] = 1
        return storage


def _unlock(storages: list[Any]) -> None:
    with _mutex:
        for storage in storages:
            address = address_of_storage(storage)
            _locked[address] -= 1
            if _locked[address] == 0:
                del _locked[address]
                ctypes.c_bool.from_address(address + (_flag_offset() or 0)).value = True


@cache
def _flag_offset() -> int | None:
    """Return the offset of the byte in a storage that makes it resizable; None if this torch has no such byte.

    `Tensor.numpy` clears this flag. torch has no function that sets it again, and none that clears it on CUDA. So a
    storage is compared before and after the call: the one byte that changes is the flag.
    """
    import torch  # noqa: PLC0415  a target is a torch tensor, so torch is imported

    tensor = torch.empty(1, dtype=torch.uint8, device="cpu")
    storage = tensor.untyped_storage()
    before = ctypes.string_at(address_of_storage(storage), INSPECTED_BYTES)
    tensor.numpy()
    after = ctypes.string_at(address_of_storage(storage), INSPECTED_BYTES)
    changes = [(offset, *bytes_) for offset, bytes_ in enumerate(zip(before, after, strict=True)) if len({*bytes_}) > 1]
    if [(was, now) for _, was, now in changes] != [(1, 0)]:
        return None
    offset: int = changes[0][0]
    ctypes.c_bool.from_address(address_of_storage(storage) + offset).value = True
    return offset if storage.resizable() else None


def _lock_for_good(tensor: Any, storage: Any) -> None:
    import torch  # noqa: PLC0415  as above

    if tensor.device.type == "cpu":
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()


def count_changes(targets: Iterable[Any]) -> None:
    """Increment the counter of each tensor; arrays, and tensors made in inference mode, have none."""
    torch = if_imported("torch")
    if torch is None:
        return
    increment, tensor_class = torch.autograd.graph.increment_version, torch.Tensor  # there may be 100 000 targets
    for target in targets:
        if isinstance(target, tensor_class) and not target.is_inference():
            increment(target)
            if type(target) is not tensor_class and is_sharded(target):
                with torch.no_grad():
                    increment(target.to_local())
