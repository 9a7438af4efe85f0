"""A load format that this vLLM cannot have: whoever asks for it gets our error, and not "unknown load format"."""

from __future__ import annotations

from typing import Any, NoReturn

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from streamer.integrations.serving.engine_hooks import refusal
from streamer.integrations.vllm.hooks import COMMAND

__all__ = ["refusing_loader"]


def refusing_loader(name: str, reason: str) -> type:
    """Make a loader that cannot be made.

    Args:
        name: Of the load format.
        reason: Which name of vLLM does not fit, and why.
    """

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 (vLLM chooses the arguments)
        raise refusal(reason, COMMAND, name)

    return type("RefusingLoader", (BaseModelLoader,), {"__new__": refuse})
