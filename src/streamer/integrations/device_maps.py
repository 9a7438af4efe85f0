"""What a ``device_map`` of transformers, accelerate or diffusers says, before the library works it out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["goes_to_devices", "is_accelerator", "stated"]

_STAYS = ("cpu", "disk", "meta")
_STRATEGIES = ("auto", "balanced", "sequential")  # and those whose names begin so: "balanced_low_0"


def is_accelerator(device: Any) -> bool:
    """Whether a tensor that goes there leaves this machine's memory."""
    return device is not None and str(device).partition(":")[0] not in _STAYS


def goes_to_devices(device_map: Any) -> bool:
    """Whether a ``device_map`` may send tensors to accelerators."""
    if device_map is None:
        return torch.empty(0).device.type not in _STAYS  # torch's default device counts
    if isinstance(device_map, Mapping):
        return any(is_accelerator(device) for device in device_map.values())
    return torch.cuda.is_available() if _is_strategy(device_map) else is_accelerator(device_map)


def stated(device_map: Any) -> dict[str, Any]:
    """Give the devices, by module, that a ``device_map`` states; none if it names a strategy."""
    if isinstance(device_map, Mapping):
        return dict(device_map)
    return {} if device_map is None or _is_strategy(device_map) else {"": device_map}


def _is_strategy(device_map: Any) -> bool:
    return isinstance(device_map, str) and device_map.split("_")[0] in _STRATEGIES
