"""Takes over the names of Run:ai's load formats, if ``STREAMER_TAKE_OVER_RUNAI=1`` is set.

Some orchestrators pass a URL on, instead of downloading the model, only if the load format has one of these names: Ray
Serve LLM, charts of llm-d, ModelExpress. vLLM chooses ``runai_streamer`` for ``s3://``, ``gs://`` and ``az://``.
"""

from __future__ import annotations

from typing import Any

from streamer.core.log import OwnLogger
from streamer.core.options.switches_and_sizes import is_on
from streamer.integrations.vllm.hooks import LOGGER

VARIABLE = "STREAMER_TAKE_OVER_RUNAI"
# Not needed here: each process reads only its own tensors, and the engine chooses the number of requests.
SWITCHES = ("distributed", "concurrency")

_log = OwnLogger(LOGGER)


def is_taken_over() -> bool:
    """Whether ``STREAMER_TAKE_OVER_RUNAI`` is set."""
    return is_on(VARIABLE)


def translated(load_config: Any) -> Any:
    """Return ``model_loader_extra_config``, with Run:ai's keys translated if the load format is one of Run:ai's."""
    given = load_config.model_loader_extra_config
    if not str(load_config.load_format).startswith("runai_streamer") or not isinstance(given, dict):
        return given
    ours = {key: value for key, value in given.items() if key not in SWITCHES}
    ignored = [key for key in given if key in SWITCHES]
    if ignored:
        _log.debug("Not needed, and ignored: %s", ", ".join(ignored))
    limit = ours.pop("memory_limit", -1)  # in Run:ai, -1 means no limit, and 0 as little as possible
    return ours if limit == -1 else {"memory_limit_bytes": limit or 1, **ours}
