"""Reads a ``device_map`` of transformers, accelerate or diffusers before the library resolves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["explicit_devices", "goes_to_devices", "is_accelerator"]

_NO_ACCELERATORS = ("cpu", "disk", "meta")
_STRATEGIES = ("auto", "balanced", "sequential")  # also prefixes of names: "balanced_low_0"


def is_accelerator(device: Any) -> bool:
    """Whether a device is an accelerator: neither host memory, nor a disk, nor the meta device."""
    return device is not None and str(device).partition(":")[0] not in _NO_ACCELERATORS


def goes_to_devices(device_map: Any) -> bool:
    """Whether a ``device_map`` may send tensors to accelerators."""
    if device_map is None:
        return torch.empty(0).device.type not in _NO_ACCELERATORS  # the default is torch's default device
    if isinstance(device_map, Mapping):
        return any(is_accelerator(device) for device in device_map.values())
    return torch.cuda.is_available() if _is_strategy(device_map) else is_accelerator(device_map)


def explicit_devices(device_map: Any) -> dict[str, Any]:
    """Return the devices that a ``device_map`` names, by module; none if it names a strategy."""
    if isinstance(device_map, Mapping):
        return dict(device_map)
    return {} if device_map is None or _is_strategy(device_map) else {"": device_map}


def _is_strategy(device_map: Any) -> bool:
    return isinstance(device_map, str) and device_map.split("_")[0] in _STRATEGIES
