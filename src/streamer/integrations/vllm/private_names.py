"""The private names of vLLM that the loaders need: all of its base classes. `hooks.py` tries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

__all__ = ["files_of_rank", "is_left_out", "own_tensors"]


def is_left_out(loader: Any) -> Callable[[str], bool]:
    """Say which tensors ``--mm-encoder-only`` leaves out, once ``load_weights`` has asked the model.

    A vLLM without these names has all tensors read; the model takes what it needs.
    """
    prefixes: Any = getattr(loader, "_encoder_only_lm_prefixes", None)
    mapper: Any = getattr(loader, "_encoder_only_weights_mapper", None)

    def is_of_language_model(name: str) -> bool:
        own_name = name if mapper is None else mapper.map_name(name)
        return own_name is not None and own_name.startswith(tuple(prefixes))

    return (lambda _: False) if prefixes is None else is_of_language_model


def files_of_rank(pattern: str | None) -> str:
    """Give the pattern of the files that this rank saved.

    Args:
        pattern: With the names of ranks in braces; None: the default.
    """
    return str(ShardedStateLoader._render_default_pattern(pattern, part="*"))


def own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Give the tensors of a model that are no part of another one: those that are saved."""
    return dict(ShardedStateLoader._filter_subtensors(model.state_dict()))
