"""The tensors of one load on accelerators; memory is allocated only when the engine requests it.

So a load takes no more device memory than its memory limit plus the tensors that its consumer keeps. If a device has no
room for a tensor, a `DeviceError` reports the requested and the free bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer import _native
from streamer.core.errors import DeviceError, LoadCancelledError
from streamer.core.tensors.torch_copies import StagedCopy
from streamer.core.tensors.torch_modes import outside_captures

if TYPE_CHECKING:
    from streamer.core.format.header_entries import TensorEntry
    from streamer.core.tensors.frameworks import Framework


class Provision(NamedTuple):
    """Memory for some items, on one device: the arguments of the engine's ``provide``."""

    device: int  # the number of the device, or the engine's CONSUMERS_HOST
    stream: int  # copies wait for the work that is queued on this stream now
    items: list[int]  # their numbers in the plan
    addresses: list[int]  # the memory of each item


class _Allocated(NamedTuple):
    tensor: Any
    stream: int


class DeviceTensors:
    """The tensors of one load on accelerators."""

    def __init__(self, entries: Sequence[TensorEntry], devices: Sequence[int], framework: Framework) -> None:
        self._entries = entries
        self._engine_devices = devices
        self._framework = framework
        self._devices = framework.devices
        self._allocated: dict[int, _Allocated] = {}
        self._copies: dict[int, StagedCopy] = {}

    def streams(self) -> dict[int, int]:
        """Return the current stream of every CUDA device of the load."""
        cuda = {device for device in self._engine_devices if device >= 0}
        return {device: self._devices.cuda.stream(device) for device in cuda}

    @outside_captures
    def allocate(self, items: Iterable[int]) -> list[Provision]:
        """Allocate the tensors of these items."""
        provisions: dict[int, Provision] = {}
        for item in items:
            device = self._engine_devices[item]
            is_staged = device == _native.CONSUMERS_HOST
            if device not in provisions:
                provisions[device] = Provision(device, 0 if is_staged else self._devices.cuda.stream(device), [], [])
            tensor = self._staging(item) if is_staged else self._empty(item, device)
            self._allocated[item] = _Allocated(tensor, provisions[device].stream)
            provisions[device].items.append(item)
            provisions[device].addresses.append(tensor.data_ptr())
        return list(provisions.values())

    def bytes_of(self, item: int) -> Any:
        """Return the bytes of an allocated tensor, for the consumer to fill: a flat tensor on the same device."""
        tensor = self._allocated[item].tensor
        return tensor.view(-1).view(sys.modules["torch"].uint8)

    @outside_captures
    def start_copies(self, items: Iterable[int]) -> None:
        """Start torch's copies of these finished items, so that they run while the caller consumes other items."""
        for item in items:
            if self._engine_devices[item] == _native.CONSUMERS_HOST and item in self._allocated:
                self._copies[item] = self._start_copy(item, self._allocated.pop(item).tensor)

    def take(self, item: int) -> Any:
        """Hand over the tensor of a finished item, after `start_copies`."""
        if self._engine_devices[item] == _native.CONSUMERS_HOST:
            copy = self._copies.pop(item, None)
            if copy is None:
                self._check_empty(item)
                copy = self._start_copy(item, self._staging(item))
            try:
                return self._devices.staging.finish(copy)
            except RuntimeError as error:
                raise self._refused(item, self._devices.device(self._entries[item].name), error) from error
        device = self._engine_devices[item]
        allocated = self._allocated.pop(item, None)
        if allocated is None:
            self._check_empty(item)
            return self._empty(item, device)
        self._devices.cuda.hand_over(allocated.tensor, device, allocated.stream)
        return allocated.tensor

    def free_all(self) -> None:
        """Free the tensors that were not taken. Call it only after the engine has stopped."""
        self._allocated.clear()
        self._copies.clear()

    def _check_empty(self, item: int) -> None:
        """Check that an item without memory is empty. Other items lose their memory only when the stream is closed."""
        if self._entries[item].end > self._entries[item].begin:
            raise LoadCancelledError("the stream was closed while it was read")

    def _empty(self, item: int, device: int) -> Any:
        entry = self._entries[item]
        try:
            return self._devices.cuda.empty(self._framework.shape(entry), self._framework.dtype(entry), device)
        except Exception as error:  # torch.OutOfMemoryError since 2.5, RuntimeError for every other failure
            raise self._refused(item, f"cuda:{device}", error, _native.cuda_free_bytes(device)) from error

    def _staging(self, item: int) -> Any:
        entry = self._entries[item]
        return self._devices.staging.pinned(self._framework.shape(entry), self._framework.dtype(entry))

    def _start_copy(self, item: int, source: Any) -> StagedCopy:
        device = self._devices.device(self._entries[item].name)
        try:
            return self._devices.staging.start(source, device)
        except RuntimeError as error:
            raise self._refused(item, device, error) from error

    def _refused(self, item: int, device: object, error: Exception, free: int | None = None) -> DeviceError:
        entry = self._entries[item]
        asked = entry.end - entry.begin
        is_full = "out of memory" in str(error).lower()
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        sizes = f"{asked} bytes asked for" + (f", {free} free" if free is not None else "")
        return DeviceError(
            f"{device} could not take tensor {entry.name[:80]!r} ({sizes}): {reason}",
            hint="Load fewer tensors (names=) or spread them over devices (device={...})" if is_full else None,
            code="CUDA_ERROR_OUT_OF_MEMORY" if is_full else type(error).__name__,
            requested_bytes=asked,
            free_bytes=free,
        )
