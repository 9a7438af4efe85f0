"""Where each wanted tensor is read to, and which tensor is handed out for it: a new one, or one of the caller's.

Refuses, before any byte is read, a tensor for which the framework has no dtype or shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.targets import Targets, bytes_at
from streamer.core.engine.plan import Item
from streamer.core.tensors.device_tensors import DeviceTensors
from streamer.core.tensors.frameworks import Framework
from streamer.core.tensors.resize_lock import ResizeLock

__all__ = ["Destinations"]


class Destinations:
    """The destinations of one read; its items are numbered as the wanted tensors are.

    Args:
        wanted: In file order.
        framework: Makes tensors.
        targets: The caller's own tensors; None where all are new.

    Attributes:
        device_tensors: Those on accelerators; None where all stay in this machine's memory.

    Raises:
        UnsupportedDtypeError: the framework has no such dtype.
    """

    def __init__(self, wanted: Sequence[ShardTensor], framework: Framework, targets: Targets | None) -> None:
        self._wanted, self._framework, self._targets = wanted, framework, targets
        entries = [each.entry for each in wanted]
        for entry in entries:
            framework.dtype(entry)
            framework.shape(entry)
        self._devices = [self._device(entry.name) for entry in entries]
        self.device_tensors: DeviceTensors | None = None
        if any(device != _native.HOST for device in self._devices):
            self.device_tensors = DeviceTensors(entries, self._devices, framework)

    @property
    def in_place(self) -> Mapping[str, Any]:
        """Name to tensor, for those of the caller's that the engine fills."""
        return self._targets.in_place if self._targets else {}

    def share_lock(self) -> ResizeLock | None:
        """Lock their memory once more; the caller releases the lock."""
        return self._targets.lock.shared() if self._targets else None

    def items(self) -> Iterator[Item]:
        """Give the items for the engine: what to read, and where to."""
        addresses = self._targets.addresses if self._targets else {}
        for shard_tensor, device in zip(self._wanted, self._devices, strict=True):
            entry = shard_tensor.entry
            yield Item(shard_tensor.shard, entry.begin, entry.end, addresses.get(entry.name, 0), device)

    def bytes_of(self, item: int, memory: _native.Memory | None) -> memoryview | None:
        """Give the bytes of a finished item; None where it is empty, or not in this machine's memory."""
        entry = self._wanted[item].entry
        data = bytes_at(self.in_place[entry.name], entry) if entry.name in self.in_place else memory
        return None if data is None else memoryview(data)

    def is_on_accelerator(self, item: int) -> bool:
        """Whether the item was read to memory of `device_tensors`."""
        return self._devices[item] != _native.HOST

    def tensor(self, item: int, memory: _native.Memory | None) -> Any:
        """Make the tensor of a finished item that is not `in_place`, on its device and in its final dtype.

        One that is copied to a target has the dtype that is stored, as the copy casts it.
        """
        entry = self._wanted[item].entry
        if self.device_tensors and self.is_on_accelerator(item):
            tensor = self.device_tensors.take(item)
        else:
            tensor = self._framework.tensor(memory, entry)
            if self._targets is None or entry.name in self._targets.fresh:
                tensor = self._framework.devices.moved(tensor, entry.name)
        is_copied = self._targets is not None and entry.name in self._targets.copies
        return tensor if is_copied else self._framework.cast(tensor, entry)

    def device_paths(self) -> set[str]:
        """List the planned paths of the tensors to their devices, as `Devices.path`."""
        if self._targets is not None:
            return self._targets.device_paths
        return {self._framework.devices.path(each.entry.name) for each in self._wanted}

    def remarks(self) -> list[str]:
        """List why a CUDA device is not filled by the engine."""
        return self._framework.devices.remarks()

    def _device(self, name: str) -> int:
        if self._targets is None:
            return self._framework.devices.engine_device(name)
        return self._targets.devices.get(name, _native.HOST)
