"""``vllm serve s3://bucket/model --load-format streamer``: a plug-in of vLLM.

vLLM finds `register` by its entry point and calls it in every process, before it forks others. So it only registers
loaders and wraps methods: it starts no thread and uses no device.
"""

from __future__ import annotations

from functools import cache

from streamer.integrations.serving.engine_hooks import all_fit, first_misfit
from streamer.integrations.vllm import hooks

__all__ = ["register"]


@cache  # vLLM may call it several times
def register() -> None:
    """Register the load formats ``streamer`` and ``streamer_sharded``, and make vLLM accept every URL.

    With ``STREAMER_TAKE_OVER_RUNAI=1``, also register ``runai_streamer`` and ``runai_streamer_sharded``.
    If a name in this version of vLLM does not fit, a line in the log names it, and a load format that needs it raises
    a `UsageError` with the commands to use instead.
    """
    if not all_fit(hooks.REGISTRATION):
        return
    from streamer.integrations.vllm.takeover import is_taken_over  # noqa: PLC0415 (it needs vLLM)

    for prefix in ("", "runai_") if is_taken_over() else ("",):
        for name in hooks.LOADERS:
            _register(name, prefix)
    if all_fit(hooks.CONFIGURATION):
        from streamer.integrations.vllm.configuration import wrap  # noqa: PLC0415 (it imports vLLM)

        wrap()


def _register(name: str, prefix: str) -> None:
    from vllm.model_executor.model_loader import register_model_loader  # noqa: PLC0415 (takes seconds)

    if all_fit(hooks.LOADERS[name]):
        register_model_loader(prefix + name)(_loader(name))
    elif not prefix and (reason := first_misfit(hooks.LOADERS[name])) is not None:
        from streamer.integrations.vllm.refusing_loader import refusing_loader  # noqa: PLC0415 (it imports vLLM)

        register_model_loader(name)(refusing_loader(name, reason))


def _loader(name: str) -> type:
    if name == "streamer_sharded":
        from streamer.integrations.vllm.sharded_loader import StreamerShardedLoader  # noqa: PLC0415 (it imports vLLM)

        return StreamerShardedLoader
    from streamer.integrations.vllm.loader import StreamerModelLoader  # noqa: PLC0415 (it imports vLLM)

    return StreamerModelLoader
