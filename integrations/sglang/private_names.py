"""The private names of SGLang that the loader needs, all of its base class: `hooks.py` and a dry run test them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.srt.model_loader.loader import DefaultModelLoader


def all_weights(loader: Any, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
    """Yield all tensors of a model, as ``load_model`` of a loader requests them."""
    yield from loader._get_all_weights(model_config, model)


def is_of_another_draft(name: str, draft: int | None) -> bool:
    """Whether a tensor belongs to another draft than the one that is loaded."""
    match = None if draft is None else DefaultModelLoader._MTP_PATTERN.match(name)
    return match is not None and int(match.group(1)) != draft


def named_for_draft(tensors: Iterator[tuple[str, Any]], prefix: str, draft: int) -> Iterator[tuple[str, Any]]:
    """Yield tensors under the names that the model of one draft uses."""
    yield from DefaultModelLoader._filter_mtp_weights(tensors, prefix, draft)


def load_in_this_thread(tensor: Any) -> None:
    """Mark a tensor, so that loaders of models do not pass it to their thread pools."""
    tensor._sglang_runai_streamer_tensor = True
