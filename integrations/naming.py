"""How libraries name what belongs to a model: its weights, their index, and its devices.

A ``device_map`` of transformers, accelerate or diffusers is read before the library resolves it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from streamer.core.errors import ObjectNotFoundError
from streamer.core.shards.small_files import OF_TOKENIZERS, USUAL_FILES
from streamer.core.store.presence import enumerated
from streamer.integrations.library_calls import Location

CONFIG, PIPELINE = "config.json", "model_index.json"
SHARD_SUFFIX = ".safetensors"
_STEMS = ("diffusion_pytorch_model", "model")  # a component of a pipeline may be a model of transformers


@dataclass(frozen=True)
class ChosenWeights:
    """The weights of a folder that a library would load."""

    location: Location
    index: str | None  # that the library looks for; None if it looks for the file itself
    has_files: bool  # the library checks that the shards exist


@dataclass(frozen=True)
class Naming:
    """The file names of a library."""

    choose: Callable[[Collection[str], str | None, Location], ChosenWeights]
    usual: tuple[str, ...]  # to look up if listing is forbidden


def without(name: str, listed: Collection[str], location: Location, hint: str) -> ObjectNotFoundError:
    """Return the error for a folder without a file of this name."""
    if not listed:
        return ObjectNotFoundError("there is no such folder, or it is empty", uri=location.label, hint="Check its name")
    message = f"the folder holds no {name}, but {enumerated(sorted(listed))}"
    return ObjectNotFoundError(message, uri=location.label, hint=hint)


def _of_transformers(listed: Collection[str], variant: str | None, location: Location) -> ChosenWeights:
    """Choose files as transformers does: one file, else an index, else other names."""
    index = _with_variant("model.safetensors.index.json", variant)
    stem = _with_variant("model.safetensors", variant).removesuffix(SHARD_SUFFIX)
    if f"{stem}.safetensors" in listed:
        chosen = f"{stem}.safetensors"
    elif variant:
        chosen = f"{stem}-*-of-*.safetensors"
    else:
        chosen = index if index in listed else ""
    return ChosenWeights(location.inside(chosen) if chosen else location, index, has_files=False)


def _of_diffusers(
    listed: Collection[str], variant: str | None, location: Location, *, may_lack_variant: bool = False
) -> ChosenWeights:
    """Choose files as diffusers does: an index if there is one, else one file."""
    for wanted in dict.fromkeys((variant, None) if may_lack_variant else (variant,)):
        for stem in _STEMS:
            file, index = (_with_variant(f"{stem}.safetensors{end}", wanted) for end in ("", ".index.json"))
            if index in listed and (file not in listed or stem == _STEMS[0]):
                # Only diffusers knows the name of a variant's index, so the shards are named by a pattern.
                shards = location.inside(f"{stem}.{wanted}-*-of-*.safetensors" if wanted else index)
                return ChosenWeights(shards, index, has_files=True)
            if file in listed:
                return ChosenWeights(location.inside(file), None, has_files=True)
    if any(name.endswith(SHARD_SUFFIX) for name in listed):
        hint = "Save the model with save_pretrained; for a file of another kind, use from_single_file"
        if others := {found[1] for name in listed for stem in _STEMS if (found := re.match(_VARIANT_OF % stem, name))}:
            hint = f"Pass variant={min(others)!r} for the weights that are there"
        raise without(_with_variant(f"{_STEMS[0]}.safetensors", variant), listed, location, hint)
    return ChosenWeights(location, None, has_files=True)  # opening this location raises the error


_VARIANT_OF = r"%s\.([^.]+?)(?:-\d+-of-\d+)?\.safetensors$"


def _with_variant(name: str, variant: str | None) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{variant}.{suffix}" if variant else name


TRANSFORMERS = Naming(
    _of_transformers,
    (
        *("model.safetensors", "model.safetensors.index.json", "adapter_config.json", "adapter_model.safetensors"),
        *USUAL_FILES,
    ),
)
_USUAL_OF_DIFFUSERS = (
    *(PIPELINE, CONFIG, "scheduler_config.json", *OF_TOKENIZERS),
    *(f"{stem}.safetensors{end}" for stem in _STEMS for end in ("", ".index.json")),
)
DIFFUSERS = Naming(_of_diffusers, _USUAL_OF_DIFFUSERS)
COMPONENT = Naming(partial(_of_diffusers, may_lack_variant=True), _USUAL_OF_DIFFUSERS)  # some components lack it


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
