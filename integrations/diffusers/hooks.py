"""The names that `streamer.diffusers` replaces in diffusers, their dry runs, and tensors on the devices of a map.

A copy of diffusers inside another package has its own hooks. transformers reads the text encoders.

diffusers reads each file into host memory, and then moves each tensor to its device. If ``device_map`` names the
devices, one for all or one for each module, diffusers receives tensors that are already on their device. Other tensors
still go through host memory: those of quantised models, as some quantisers work when a tensor leaves host memory, and
those that a strategy (``"auto"``, ``"balanced"``) places after the read. Text encoders are placed as in transformers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from streamer.compat.hooks import Hook, imported, is_equal, package_with
from streamer.integrations.model_folder import ModelFolder, SingleFile
from streamer.integrations.naming import CONFIG, DIFFUSERS, explicit_devices, goes_to_devices
from streamer.integrations.routed_call import RoutedFolder, RoutedName, routed
from streamer.integrations.small_checkpoint import small_checkpoint, without_progress_bars
from streamer.integrations.transformers import hooks as transformers_hooks
from streamer.integrations.transformers.hooks import LIBRARY, placed_tensors, placement_hook

_OTHERWISE = "weights are written to a private folder on a disk before they are loaded, which is slower"
_TRANSFORMERS_STEM = "model"  # the beginning of the names of its files

package_of = partial(package_with, "diffusers")

_QUANTISATION = "quantization_config"


def route_of(part: ModelFolder | SingleFile, package: str) -> RoutedFolder:
    """Return the route by which the weights of a component, or of a single file, are read."""
    if isinstance(part, SingleFile):
        return RoutedFolder(part, dict.fromkeys(_readers(package), part.loaded), file_hook(package))
    if is_of_transformers(part):
        library = transformers_hooks.LIBRARY
        readers = dict.fromkeys(transformers_hooks.readers(library), part.opened)
        return RoutedFolder(part, readers, transformers_hooks.weights_hook(library))
    return RoutedFolder(part, dict.fromkeys(_readers(package), part.loaded), weights_hook(package))


def is_of_transformers(part: ModelFolder) -> bool:
    """Whether transformers loads a component (a text encoder)."""
    return any(name.startswith(_TRANSFORMERS_STEM) for name in part.shards)


@cache
def _readers(package: str) -> tuple[RoutedName, ...]:
    """Return all names of the function that reads a file: several modules import it."""
    modules = ("models.model_loading_utils", "models.modeling_utils", "loaders.single_file_utils")
    return tuple(RoutedName(f"{package}.{module}", "load_state_dict") for module in modules)


@cache
def weights_hook(package: str) -> Hook:
    """Return the hook for the reader that ``from_pretrained`` uses."""
    return Hook(
        f"{package}.models.modeling_utils",
        "load_state_dict",
        otherwise=_OTHERWISE,
        dry_run=partial(_loads_a_small_model, package),
    )


@cache
def file_hook(package: str) -> Hook:
    """Return the hook for the reader that ``from_single_file`` uses."""
    return Hook(
        f"{package}.loaders.single_file_utils",
        "load_state_dict",
        otherwise=_OTHERWISE,
        dry_run=partial(_loads_a_small_file, package),
    )


def _loads_a_small_model(package: str) -> bool:
    """Whether a model of two tensors is loaded equally from a URL and, by the library's own reader, from files."""
    host, register = imported(package), imported(f"{package}.configuration_utils").register_to_config

    class SmallModel(host.ModelMixin, host.ConfigMixin):  # type: ignore[misc, name-defined]
        config_name = CONFIG

        @register  # type: ignore[untyped-decorator]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

    with small_checkpoint("diffusion_pytorch_model") as (location, expected), without_progress_bars(package):
        SmallModel().save_config(location.uri)
        with (
            closing(ModelFolder(location, naming=DIFFUSERS)) as folder,
            routed(folder.path, dict.fromkeys(_readers(package), folder.loaded)),
        ):
            ours, theirs = (SmallModel.from_pretrained(path) for path in (folder.path, location.uri))
            return is_equal(ours.state_dict(), expected) and is_equal(theirs.state_dict(), expected)


def _loads_a_small_file(package: str) -> bool:
    """Whether the files of two tensors are read equally from a URL and by the library's own reader."""
    read = imported(f"{package}.loaders.single_file_utils").load_single_file_checkpoint
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    with small_checkpoint() as (location, expected):
        for shard in (each for each in os.listdir(location.uri) if each.endswith(".safetensors")):
            with (
                closing(SingleFile(location.inside(shard))) as file,
                routed(file.path, dict.fromkeys(_readers(package), file.loaded)),
            ):
                ours.update(read(file.file_path))
                theirs.update(read(os.path.join(location.uri, shard)))
    return is_equal(ours, expected) and is_equal(theirs, expected)


def is_placed_by(kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of ``from_pretrained`` name an accelerator, and no quantisation."""
    device_map = kwargs.get("device_map")
    return kwargs.get(_QUANTISATION) is None and bool(explicit_devices(device_map)) and goes_to_devices(device_map)


@contextmanager
def placed_models(folders: Sequence[ModelFolder], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Read tensors of these models directly to their devices inside the block; only one thread may be in it."""
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
