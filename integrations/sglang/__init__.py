"""``sglang serve --model-path s3://bucket/model --load-format streamer``: a plug-in of SGLang.

SGLang finds `register` by its entry point and calls it in every process. It only adds a choice for ``--load-format``
and registers hooks, which SGLang applies.
"""

from __future__ import annotations

from functools import cache

from streamer.integrations.serving.engine_hooks import all_fit
from streamer.integrations.sglang.hooks import NAMES

__all__ = ["register"]


@cache
def register() -> None:
    """Register the load format ``streamer``, and make SGLang accept every URL.

    If a name in this version of SGLang does not fit, a line in the log names it, and what to use instead.
    """
    if not all_fit(NAMES):
        return
    from streamer.integrations.sglang.hooks import register_hooks  # noqa: PLC0415 (it imports SGLang)

    register_hooks()
