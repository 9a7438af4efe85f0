"""``sglang serve --model-path s3://bucket/model --load-format streamer``: a plug-in of SGLang.

SGLang finds `register` by its entry point and calls it in every process. Nothing is done here but to add a choice
and to register hooks, which SGLang applies.
"""

from __future__ import annotations

from functools import cache

from streamer.integrations.serving.engine_hooks import all_fit
from streamer.integrations.sglang.names import NAMES

__all__ = ["register"]


@cache
def register() -> None:
    """Register the load format ``streamer``, and let SGLang know every URL.

    If a name of SGLang does not fit, whatever its version, a line in the log says which, and what to use instead.
    """
    if not all_fit(NAMES):
        return
    from streamer.integrations.sglang.hooks import register_hooks  # noqa: PLC0415 (it imports SGLang)

    register_hooks()
