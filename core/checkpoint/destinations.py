"""Where each wanted tensor goes, and what is handed out for it: memory of its own, or a tensor of the caller's.

Refuses, before any byte is read, what the framework has no dtype or shape for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamer import _native
from streamer.core.checkpoint.catalog import Located
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

    def __init__(self, wanted: Sequence[Located], framework: Framework, targets: Targets | None) -> None:
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
        """Take a share in what keeps their memory where it is; the taker's to release."""
        return self._targets.lock.shared() if self._targets else None

    def items(self) -> Iterator[Item]:
        """Give what the engine shall read, and where to."""
        addresses = self._targets.addresses if self._targets else {}
        for located, device in zip(self._wanted, self._devices, strict=True):
            entry = located.entry
            yield Item(located.shard, entry.begin, entry.end, addresses.get(entry.name, 0), device)

    def bytes_of(self, item: int, memory: _native.Memory | None) -> memoryview | None:
        """Give the bytes of a finished item; None where they are none, or not in this machine's memory."""
        entry = self._wanted[item].entry
        data = bytes_at(self.in_place[entry.name], entry) if entry.name in self.in_place else memory
        return None if data is None else memoryview(data)

    def is_on_accelerator(self, item: int) -> bool:
        """Whether the item was read to memory of `device_tensors`."""
        return self._devices[item] != _native.HOST

    def tensor(self, item: int, memory: _native.Memory | None) -> Any:
        """Make the tensor of a finished item that is not `in_place`, on its device and in its final dtype."""
        entry = self._wanted[item].entry
        if self.device_tensors and self.is_on_accelerator(item):
            return self._framework.cast(self.device_tensors.take(item))
        tensor = self._framework.tensor(memory, entry)
        return self._framework.cast(self._framework.devices.moved(tensor, entry.name))

    def device_paths(self) -> set[str]:
        """Say how the tensors are meant to get to their devices, as `Devices.path`."""
        if self._targets is not None:
            return self._targets.device_paths
        return {self._framework.devices.path(located.entry.name) for located in self._wanted}

    def remarks(self) -> list[str]:
        """Say why a CUDA device is not filled by the engine."""
        return self._framework.devices.remarks()

    def _device(self, name: str) -> int:
        if self._targets is None:
            return self._framework.devices.engine_device(name)
        return self._targets.devices.get(name, _native.HOST)
