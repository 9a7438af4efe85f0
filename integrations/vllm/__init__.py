"""``vllm serve s3://bucket/model --load-format streamer``: a plug-in of vLLM.

vLLM finds `register` by its entry point and calls it in every process, before it forks others. So it only registers
loaders and wraps methods: it starts no thread and uses no device.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from streamer.integrations.serving.engine_hooks import all_fit, first_misfit, refusal
from streamer.integrations.vllm import hooks

__all__ = ["register"]


@cache  # vLLM may call it several times
def register() -> None:
    """Register the load formats ``streamer`` and ``streamer_sharded``, and make vLLM accept every URL, also of a LoRA.

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
        if all_fit(hooks.ADAPTERS):
            from streamer.integrations.vllm import adapters  # noqa: PLC0415 (it imports vLLM)

            adapters.register()


def _register(name: str, prefix: str) -> None:
    from vllm.model_executor.model_loader import register_model_loader  # noqa: PLC0415 (takes seconds)

    if all_fit(hooks.LOADERS[name]):
        from streamer.integrations.vllm import loader  # noqa: PLC0415 (it imports vLLM)

        classes = {"streamer": loader.StreamerModelLoader, "streamer_sharded": loader.StreamerShardedLoader}
        register_model_loader(prefix + name)(classes[name])
    elif not prefix and (reason := first_misfit(hooks.LOADERS[name])) is not None:
        register_model_loader(name)(_refusing_loader(name, reason))


def _refusing_loader(name: str, reason: str) -> type:
    """Return a loader class whose construction raises our error: the load format does not fit this version of vLLM."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader  # noqa: PLC0415 (takes seconds)

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 (vLLM chooses the arguments)
        raise refusal(reason, hooks.COMMAND, name)

    return type("RefusingLoader", (BaseModelLoader,), {"__new__": refuse})
