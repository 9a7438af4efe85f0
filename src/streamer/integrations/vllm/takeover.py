"""Takes the names of Run:ai's load formats, where ``STREAMER_TAKE_OVER_RUNAI=1`` asks for it.

Orchestrators hand a URL on, instead of downloading the model, if the load format has one of these names: Ray Serve LLM,
charts of llm-d, ModelExpress. vLLM itself chooses ``runai_streamer`` for ``s3://``, ``gs://`` and ``az://``.
"""

from __future__ import annotations

import logging
from typing import Any

from streamer.core.options.switches import is_on
from streamer.integrations.vllm.log import LOGGER

__all__ = ["is_taken_over", "translated"]

VARIABLE = "STREAMER_TAKE_OVER_RUNAI"
SWITCHES = ("distributed", "concurrency")  # each process reads what it needs, and requests follow the storage

_log = logging.getLogger(LOGGER)


def is_taken_over() -> bool:
    """Whether the environment asks for it."""
    return is_on(VARIABLE)


def translated(load_config: Any) -> Any:
    """Give ``model_loader_extra_config`` with Run:ai's keys as ours, if the load format is one of Run:ai's.

    Args:
        load_config: Of vLLM.
    """
    given = load_config.model_loader_extra_config
    if not str(load_config.load_format).startswith("runai_streamer") or not isinstance(given, dict):
        return given
    ours = {key: value for key, value in given.items() if key not in SWITCHES}
    ignored = [key for key in given if key in SWITCHES]
    if ignored:
        _log.debug("Not needed, and ignored: %s", ", ".join(ignored))
    limit = ours.pop("memory_limit", -1)  # of Run:ai: -1 for none, 0 for as little as possible
    return ours if limit == -1 else {"memory_limit_bytes": limit or 1, **ours}
