"""The names that `streamer.transformers` replaces in transformers, and the dry run that tests whether this works.

A copy of transformers inside another package has its own hooks.

The device of each tensor is recorded before the tensor is read, so that the engine copies it there. transformers passes
a slice of each tensor to ``spawn_materialize``, with its device, and reads it in a thread or later. Inside the block of
`placed_tensors`, it reads planned slices later, after all devices are recorded: one plan reads each tensor through
pinned memory to its device. transformers converts it there: casts, fusing of experts, quantisation. Other tensors still
go through host memory: parts for ranks, and loads in which transformers reads one tensor at a time to save memory (it
quantises while it loads, or leaves weights on a disk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import Any

import torch

from streamer.compat.hooks import Hook, imported, is_equal, package_with
from streamer.integrations.model_folder import ModelFolder
from streamer.integrations.naming import is_accelerator
from streamer.integrations.routed_call import RoutedName, routed
from streamer.integrations.shard_handles import PlannedSlice
from streamer.integrations.small_checkpoint import small_checkpoint, without_progress_bars

LIBRARY = "transformers"

package_of = partial(package_with, LIBRARY)


@cache
def readers(package: str) -> tuple[RoutedName, ...]:
    """Return the names by which a package of transformers opens files of weights."""
    modules = ("modeling_utils", "integrations.accelerate", "modeling_layers", "quantizers.quantizer_torchao")
    return tuple(RoutedName(f"{package}.{module}", origin=("safetensors", "safe_open")) for module in modules)


def late_readers(package: str, model: Any) -> list[RoutedName]:
    """Return the functions of transformers that read more weights after a model was loaded.

    ``generate(use_mtp=True)`` of transformers 5.24 opens the checkpoint that ``config.name_or_path`` names, and reads
    the layers that predict several tokens.
    """
    text_config: Any = getattr(getattr(model, "config", None), "get_text_config", dict)()
    has_late_layers = isinstance(model, torch.nn.Module) and getattr(text_config, "num_mtp_layers", None)
    return [each for each in readers(package) if each.module.endswith(".modeling_layers")] if has_late_layers else []


@cache
def weights_hook(package: str) -> Hook:
    """Return the hook for the reader that ``from_pretrained`` uses."""
    return Hook(
        f"{package}.modeling_utils",
        "safe_open",
        otherwise="weights are written to a private folder on a disk before they are loaded, which is slower",
        dry_run=partial(_loads_a_small_model, package),
    )


def _loads_a_small_model(package: str) -> bool:
    """Whether a model of two tensors is loaded equally from a URL and, by the library's own reader, from files."""
    host = imported(package)

    class SmallConfig(host.PretrainedConfig):  # type: ignore[misc, name-defined]
        model_type = "streamer_dry_run"

    class SmallModel(host.PreTrainedModel):  # type: ignore[misc, name-defined]
        config_class = SmallConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layer = torch.nn.Linear(3, 2)
            self.post_init()

    with small_checkpoint() as (location, expected), without_progress_bars(package):
        SmallConfig().save_pretrained(location.uri)
        with (
            closing(ModelFolder(location)) as folder,
            routed(folder.path, dict.fromkeys(readers(package), folder.opened)),
        ):
            ours, theirs = (
                SmallModel.from_pretrained(path, dtype=torch.float32) for path in (folder.path, location.uri)
            )
            return is_equal(ours.state_dict(), expected) and is_equal(theirs.state_dict(), expected)


@cache
def placement_hook(package: str) -> Hook:
    """Return the hook for the function by which a package of transformers reads each tensor."""
    return Hook(
        f"{package}.core_model_loading",
        "spawn_materialize",
        otherwise="tensors are copied to their devices one after the other from pageable memory, which is slower",
        positional=4,
        dry_run=partial(_reads_a_tensor_later, package),
    )


@contextmanager
def placed_tensors(package: str) -> Iterator[None]:
    """Read planned tensors directly to their devices inside the block; only one thread may be in it."""
    module: Any = imported(f"{package}.core_model_loading")
    theirs = module.spawn_materialize
    ours = partial(_spawned, theirs)
    module.spawn_materialize = ours
    try:
        yield
    finally:
        if module.spawn_materialize is ours:
            module.spawn_materialize = theirs


def _spawned(
    theirs: Callable[..., Any], pool: Any, tensor: Any, device: Any = None, dtype: Any = None, **others: Any
) -> Any:
    """Return the job that reads a tensor, and record the device of the tensor."""
    is_planned = isinstance(tensor, PlannedSlice) and pool is not None and others.get("sharding_op") is None
    if not is_planned:
        return theirs(pool, tensor, device, dtype, **others)
    if is_accelerator(device):
        tensor.place(device)
    return theirs(None, tensor, device, dtype, **others)


def _reads_a_tensor_later(package: str) -> bool:
    """Whether transformers, with a pool of threads, reads two tensors later and correctly."""
    spawn = placement_hook(package).found()
    with small_checkpoint() as (location, expected):
        whole = location.checkpoint()
        plan = whole.read_ahead()
        handles = [whole.opened_shard(shard, "cpu", plan) for shard in set(whole.shard_of_tensor().values())]
        slices = {name: handle.get_slice(name) for handle in handles for name in handle}
        jobs = {name: _spawned(spawn, object(), part, "cpu", torch.float32) for name, part in slices.items()}
        return is_equal({name: job() for name, job in jobs.items()}, expected)
