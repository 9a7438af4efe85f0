"""A strategy of ModelExpress that stands where its strategy for Run:ai's streamer stands: it reads ``MX_MODEL_URI``.

ModelExpress tries the next strategy if this one raises `StrategyFailed`; its log has the text of our error.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from modelexpress.adapter import EngineAdapter, StrategyFailed
from modelexpress.load_strategy.base import LoadStrategy, register_tensors
from modelexpress.load_strategy.context import LoadResult

from streamer.core.secrets.environment import variable
from streamer.integrations.serving.engine_hooks import forward_log
from streamer.integrations.serving.recorder import Recorder
from streamer.integrations.serving.weights_location import weights_of
from streamer.integrations.serving.weights_stream import parsed, stream_weights


class StreamerStrategy(LoadStrategy):  # type: ignore[misc]
    """Loads safetensors from any path or URL; the engine's ``model_loader_extra_config`` says how.

    In vLLM, each rank reads only what it keeps. Loaders of other engines may run in threads, and get whole tensors.
    """

    name = "model_streamer"
    requires = (EngineAdapter.apply_weight_iter,)

    def is_available(self, ctx: Any) -> bool:
        """Whether ``MX_MODEL_URI`` is set, and the engine takes tensors."""
        return variable("MX_MODEL_URI") is not None and bool(super().is_available(ctx))

    def load(self, result: Any, ctx: Any) -> Any:
        """Fill the model; raises `StrategyFailed`, which says whether the model was changed."""
        result = result if isinstance(result, LoadResult) else LoadResult(value=result, model=result)
        recorder = Recorder()
        forward_log("modelexpress.streamer")
        try:
            how = parsed(ctx.load_config.model_loader_extra_config, ())
            how = replace(how, is_deferred=how.is_deferred and type(ctx.load_config).__module__.startswith("vllm."))
            weights = stream_weights(
                weights_of(variable("MX_MODEL_URI") or "", None, None, None),
                how,
                lambda _: True,
                patterns=None,
                ignored=ctx.load_config.ignore_patterns,
                progress=None,
                recorder=recorder,
            )
        except Exception as error:
            raise StrategyFailed(str(error), mutated=False) from error
        try:
            with recorder.around(result.model) if how.is_deferred else nullcontext(), weights as tensors:
                result = ctx.adapter.apply_weight_iter(result, iter(tensors))
            result = ctx.adapter.after_weight_iter_load(result)
        except Exception as error:
            raise StrategyFailed(str(error), mutated=True) from error
        register_tensors(result, ctx)
        return result
