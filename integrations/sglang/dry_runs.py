"""A dry run of our loader and of SGLang's loader from which it derives. It needs the first model's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader

from streamer.compat.hooks import Hook
from streamer.integrations.serving.dry_run import SmallModel, both_loaders, changed, is_filled_alike, without_lines
from streamer.integrations.serving.engine_hooks import without_url
from streamer.integrations.sglang.names import COMMAND
from streamer.integrations.sglang.private_names import all_weights
from streamer.integrations.small_checkpoint import small_checkpoint

__all__ = ["TENSORS"]


def _is_filled_alike(loader: Any, model_config: Any) -> bool:
    """Whether our loader and SGLang's loader from which it derives fill a small model equally."""
    with small_checkpoint() as (location, expected), without_lines(DefaultModelLoader.__module__):
        small = changed(model_config, model_path=location.uri, model_weights="", revision=None)
        ours, theirs = both_loaders(loader, DefaultModelLoader, "safetensors", draft_model_idx=None)
        return is_filled_alike(_filling(ours, small), _filling(theirs, small), expected)


def _filling(loader: Any, model_config: Any) -> Callable[[SmallModel], None]:
    """Return a function that fills a model as ``DefaultModelLoader.load_model`` does."""

    def fill(model: SmallModel) -> None:
        loader.load_weights_and_postprocess(model, all_weights(loader, model_config, model), torch.device("cpu"))

    return fill


TENSORS = Hook(
    DefaultModelLoader.__module__,
    "DefaultModelLoader._get_all_weights",
    without_url(COMMAND, "streamer"),
    positional=3,
    dry_run=_is_filled_alike,
)
