"""``vllm serve s3://bucket/model --load-format streamer``: a plug-in of vLLM.

vLLM finds `register` by its entry point and calls it in every process, before it forks others. So nothing is done here
but to register loaders and to wrap methods: no thread is started, and no device is touched.
"""

from __future__ import annotations

from functools import cache

from streamer.compat.versions import may_be_patched

__all__ = ["TRIED", "register"]

TRIED = ("0.33", "0.34")  # versions of vLLM: the first one tried, and the first one not tried


@cache  # vLLM may call it several times
def register() -> None:
    """Register the load formats ``streamer`` and ``streamer_sharded``, and let vLLM know every URL.

    With ``STREAMER_TAKE_OVER_RUNAI=1``, the formats ``runai_streamer`` and ``runai_streamer_sharded`` as well.

    A version of vLLM that was not tried is left as it is, with one warning.
    """
    if not may_be_patched("vllm", TRIED):
        return
    from vllm.model_executor.model_loader import register_model_loader  # noqa: PLC0415 (takes seconds)

    from streamer.integrations.vllm.configuration import wrap  # noqa: PLC0415 (they import vLLM)
    from streamer.integrations.vllm.loader import StreamerModelLoader  # noqa: PLC0415
    from streamer.integrations.vllm.sharded_loader import StreamerShardedLoader  # noqa: PLC0415
    from streamer.integrations.vllm.takeover import is_taken_over  # noqa: PLC0415

    for prefix in ("", "runai_") if is_taken_over() else ("",):
        register_model_loader(f"{prefix}streamer")(StreamerModelLoader)
        register_model_loader(f"{prefix}streamer_sharded")(StreamerShardedLoader)
    wrap()
