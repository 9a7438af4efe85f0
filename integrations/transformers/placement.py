"""Records the device of each tensor of transformers before the tensor is read, so that the engine copies it there.

transformers passes a slice of each tensor to ``spawn_materialize``, with its device, and reads it in a thread or later.
Inside the block of `placed_tensors`, it reads planned slices later, after all devices are recorded: one plan reads each
tensor through pinned memory to its device. transformers converts it there: casts, fusing of experts, quantisation.
Other tensors still go through host memory: parts for ranks, and loads in which transformers reads one tensor at a time
to save memory (it quantises while it loads, or leaves weights on a disk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from streamer.compat.hooks import Hook, imported, is_equal
from streamer.integrations.naming import is_accelerator
from streamer.integrations.shard_handles import PlannedSlice
from streamer.integrations.small_checkpoint import small_checkpoint

__all__ = ["placed_tensors", "placement_hook"]


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
