"""``sglang serve --model-path s3://bucket/model --load-format streamer``: a plug-in of SGLang.

SGLang finds `register` by its entry point and calls it in every process. Nothing is done here but to add a choice
and to register hooks, which SGLang applies.
"""

from __future__ import annotations

from functools import cache

from streamer.compat.versions import may_be_patched

__all__ = ["TRIED", "register"]

TRIED = ("0.5.23", "0.5.24")  # versions of SGLang: the first one tried, and the first one not tried


@cache
def register() -> None:
    """Register the load format ``streamer``, and let SGLang know every URL.

    A version of SGLang that was not tried is left as it is, with one warning.
    """
    if not may_be_patched("sglang", TRIED):
        return
    from streamer.integrations.sglang.hooks import register_hooks  # noqa: PLC0415 (it imports SGLang)

    register_hooks()
