"""Decides which device each tensor goes to, and what copies it: the engine for CUDA devices, torch for all others.

Refuses a device that the framework does not have or cannot use here.
"""

from __future__ import annotations

from typing import Any, Protocol

from streamer import _native
from streamer.core.errors import UnknownDeviceError
from streamer.core.tensors import torch_cuda
from streamer.core.tensors.device_refusals import HINT, refused_device, shown_device
from streamer.core.tensors.placement import Placement
from streamer.core.tensors.torch_staging import TorchStaging, can_stage

__all__ = ["Devices", "HostOnly", "TorchDevices"]


class Devices(Protocol):
    """The devices of one call."""

    @property
    def cuda(self) -> torch_cuda.TorchCuda:
        """The CUDA devices; use it only if `engine_device` or `engine_device_of` returned one."""

    @property
    def staging(self) -> TorchStaging:
        """Copies by torch; use it only if `engine_device` returned the engine's CONSUMERS_HOST."""

    def device(self, name: str) -> Any:
        """Return the device of a tensor, as an object of the library."""

    def engine_device(self, name: str) -> int:
        """Return where the engine shall put the bytes, as `streamer.core.engine.plan.Item.device`."""

    def engine_device_of(self, tensor: Any) -> int:
        """Return `engine_device` of an existing tensor."""

    def path(self, name: str) -> str:
        """Return how a tensor reaches its device.

        "ring": through pinned memory. "torch" or "jax": copied by that library. "": it stays in this machine's memory.
        """

    def path_of(self, tensor: Any) -> str:
        """Return `path` of an existing tensor."""

    def moved(self, tensor: Any, name: str) -> Any:
        """Return the tensor on its device, copied from this machine's memory."""

    def remarks(self) -> list[str]:
        """Return the reasons why the engine does not fill a CUDA device."""


class TorchDevices:
    """Any device of torch, or a mapping of names to devices; see `Placement`."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self.cuda = torch_cuda.TorchCuda(torch)
        self.staging = TorchStaging(torch)
        self._placement = Placement(device)
        self._devices_by_key = {_key(device): _usable(torch, device) for device in self._placement.devices}
        self._is_all_cpu = all(device.type == "cpu" for device in self._devices_by_key.values())

    def engine_device(self, name: str) -> int:
        if self._is_all_cpu and self._placement.leaves_none_out:
            return _native.HOST
        device = self.device(name)
        number = self._engine_device(device)
        is_staged = number == _native.HOST and device.type != "cpu" and can_stage(self._torch, device)
        return _native.CONSUMERS_HOST if is_staged else number

    def engine_device_of(self, tensor: Any) -> int:
        return self._engine_device(self.cuda.device_of(tensor))

    def path(self, name: str) -> str:
        return "" if self._is_all_cpu else self._path(self.device(name))

    def path_of(self, tensor: Any) -> str:
        return self._path(self.cuda.device_of(tensor))

    def moved(self, tensor: Any, name: str) -> Any:
        return tensor if self._is_all_cpu else tensor.to(self.device(name))

    def remarks(self) -> list[str]:
        cuda = {self.cuda.index_of(device) for device in self._devices_by_key.values() if device.type == "cuda"}
        refusals = [(index, self.cuda.refusal(index)) for index in sorted(cuda)]
        return [f"cuda:{index} is filled by torch: {refusal.detail}" for index, refusal in refusals if refusal]

    def device(self, name: str) -> Any:
        return self._devices_by_key[_key(self._placement.of(name))]

    def _path(self, device: Any) -> str:
        if device.type == "cpu":
            return ""
        return "torch" if self._engine_device(device) == _native.HOST else "ring"

    def _engine_device(self, device: Any) -> int:
        if device.type != "cuda":
            return _native.HOST
        index = self.cuda.index_of(device)
        return index if self.cuda.is_filled_by_engine(index) else _native.HOST


class HostOnly:
    """Host memory only, for numpy."""

    def __init__(self, device: Any) -> None:
        if str(device) != "cpu":
            hint = "Use framework=\"pt\", or device='cpu'"
            raise UnknownDeviceError(f"numpy arrays live on the cpu, not on {shown_device(device)}", hint=hint)

    @property
    def cuda(self) -> torch_cuda.TorchCuda:
        raise AssertionError("numpy has no devices")

    @property
    def staging(self) -> TorchStaging:
        raise AssertionError("numpy has no devices")

    def device(self, name: str) -> Any:
        return "cpu"

    def engine_device(self, name: str) -> int:
        return _native.HOST

    def engine_device_of(self, tensor: Any) -> int:
        return _native.HOST

    def path(self, name: str) -> str:
        return ""

    def path_of(self, tensor: Any) -> str:
        return ""

    def moved(self, tensor: Any, name: str) -> Any:
        return tensor

    def remarks(self) -> list[str]:
        return []


def _usable(torch: Any, device: Any) -> Any:
    try:
        torch_device = torch.device(device)
        if torch_device.type != "cpu":
            torch_cuda.probe(torch, torch_device)
    except Exception as error:  # torch raises RuntimeError, AssertionError, ValueError by device kind
        raise refused_device(torch, device, error, _cuda_refusal(device)) from error
    if torch_device.type == "meta":
        raise UnknownDeviceError("tensors on the meta device hold no bytes to load", hint=HINT)
    return torch_device


def _cuda_refusal(device: Any) -> _native.ReadError | None:
    """Return the driver's error for a CUDA device that torch cannot use; None for other kinds of devices."""
    kind, _, index = str(device).partition(":")
    return _native.cuda_open(int(index) if index.isdecimal() else 0) if kind == "cuda" else None


def _key(device: Any) -> str:
    """Return a key for a device as the caller wrote it: 0 and "0" may be different devices to torch."""
    return f"{type(device).__name__}:{device}"
