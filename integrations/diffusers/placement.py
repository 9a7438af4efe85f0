"""Lets the engine read the models of diffusers to the devices that ``device_map`` names.

diffusers reads each file into host memory, and then moves each tensor to its device. If ``device_map`` names the
devices, one for all or one for each module, it receives tensors that are already on their device. Other tensors still
go through host memory: those of quantised models, as some quantisers work when a tensor leaves host memory, and those
that a strategy (``"auto"``, ``"balanced"``) places after the read. Text encoders are placed as in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from streamer.integrations.device_maps import explicit_devices, goes_to_devices
from streamer.integrations.diffusers.hooks import is_of_transformers
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import CONFIG
from streamer.integrations.transformers.hooks import LIBRARY
from streamer.integrations.transformers.placement import placed_tensors, placement_hook

__all__ = ["is_placed_by", "placed_models"]

_QUANTISATION = "quantization_config"


def is_placed_by(kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``from_pretrained`` name an accelerator, and no quantisation."""
    device_map = kwargs.get("device_map")
    return kwargs.get(_QUANTISATION) is None and bool(explicit_devices(device_map)) and goes_to_devices(device_map)


@contextmanager
def placed_models(folders: Sequence[ModelFolder], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Read tensors of these models directly to their devices inside the block; only one thread may be in it.

    Args:
        folders: The private folder of each model.
        kwargs: The arguments of ``from_pretrained``.
    """
    if not is_placed_by(kwargs):
        yield
        return
    for folder in folders:
        if not _is_quantised(folder):
            folder.place(explicit_devices(kwargs["device_map"]))
    has_text = any(map(is_of_transformers, folders))
    with placed_tensors(LIBRARY) if has_text and placement_hook(LIBRARY).fits() else nullcontext():
        yield


def _is_quantised(folder: ModelFolder) -> bool:
    with suppress(OSError, ValueError):
        return _QUANTISATION in json.loads(Path(folder.path, CONFIG).read_bytes())
    return False
