"""Stands for a load format that does not fit this version of vLLM: its use raises our error, which names the reason."""

from __future__ import annotations

from typing import Any, NoReturn

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from streamer.integrations.serving.engine_hooks import refusal
from streamer.integrations.vllm.hooks import COMMAND

__all__ = ["refusing_loader"]


def refusing_loader(name: str, reason: str) -> type:
    """Return a loader class whose construction raises."""

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 (vLLM chooses the arguments)
        raise refusal(reason, COMMAND, name)

    return type("RefusingLoader", (BaseModelLoader,), {"__new__": refuse})
