"""Dry runs of our loaders and of vLLM's two loaders from which they derive, with the first model's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

from streamer.compat.hooks import Hook
from streamer.integrations.serving.dry_run import both_loaders, changed, is_filled_alike, without_lines
from streamer.integrations.serving.engine_hooks import without_url
from streamer.integrations.small_checkpoint import small_checkpoint
from streamer.integrations.vllm.hooks import COMMAND
from streamer.integrations.vllm.private_names import files_of_rank

__all__ = ["SHARDED_TENSORS", "TENSORS"]


def _is_filled_alike(loader: Any, model_config: Any) -> bool:
    """Whether our loader and vLLM's loader from which it derives fill a small model equally."""
    base, theirs_format = DefaultModelLoader, "safetensors"
    if isinstance(loader, ShardedStateLoader):
        base, theirs_format = ShardedStateLoader, "sharded_state"
    with small_checkpoint() as (location, expected), without_lines(base.__module__, weight_utils.__name__):
        if base is ShardedStateLoader:
            file = Path(location.uri, files_of_rank(None).replace("*", "0"))
            safetensors.torch.save_file(expected, file)
        small = changed(model_config, model=location.uri, model_weights="", revision=None)
        ours, theirs = both_loaders(loader, base, theirs_format, use_tqdm_on_load=False)
        return is_filled_alike(
            lambda model: ours.fill(model, small), lambda model: theirs.load_weights(model, small), expected
        )


TENSORS = Hook(
    DefaultModelLoader.__module__,
    "DefaultModelLoader.load_weights",
    without_url(COMMAND, "streamer"),
    positional=3,
    dry_run=_is_filled_alike,
)
SHARDED_TENSORS = Hook(
    ShardedStateLoader.__module__,
    "ShardedStateLoader.load_weights",
    without_url(COMMAND, "streamer_sharded"),
    positional=3,
    dry_run=_is_filled_alike,
)
