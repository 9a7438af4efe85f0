"""The private names of vLLM that the loaders use, all of the loaders' base classes.

`hooks.py` tests the names of `ShardedStateLoader`; without the other names, a load continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader


def is_left_out(loader: Any) -> Callable[[str], bool]:
    """Return a test for tensors that ``--mm-encoder-only`` leaves out; call it after ``load_weights`` has set it up.

    If vLLM lacks these names, all tensors are read, and the model takes those that it needs.
    """
    prefixes: Any = getattr(loader, "_encoder_only_lm_prefixes", None)
    mapper: Any = getattr(loader, "_encoder_only_weights_mapper", None)

    def is_of_language_model(name: str) -> bool:
        own_name = name if mapper is None else mapper.map_name(name)
        return own_name is not None and own_name.startswith(tuple(prefixes))

    return (lambda _: False) if prefixes is None else is_of_language_model


def files_of_rank(pattern: str | None) -> str:
    """Return the pattern of the files that this rank saved."""
    return str(ShardedStateLoader._render_default_pattern(pattern, part="*"))


def own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model that are not part of another tensor: vLLM saves only these."""
    return dict(ShardedStateLoader._filter_subtensors(model.state_dict()))
