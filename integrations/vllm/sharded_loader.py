"""The load format ``streamer_sharded``: reads the state that each rank of vLLM saved, from any storage."""

from __future__ import annotations

import copy
from typing import Any

from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

from streamer._stream import stream
from streamer.core.errors import FormatError
from streamer.integrations.serving.engine_hooks import refusal
from streamer.integrations.serving.weights_location import weights_of
from streamer.integrations.serving.weights_stream import parsed
from streamer.integrations.vllm.dry_runs import SHARDED_TENSORS
from streamer.integrations.vllm.hooks import COMMAND
from streamer.integrations.vllm.log import forward_log
from streamer.integrations.vllm.private_names import files_of_rank, own_tensors
from streamer.integrations.vllm.takeover import translated

__all__ = ["StreamerShardedLoader"]

_HINT = "Save the state again, with the same version of vLLM and as many ranks"


class StreamerShardedLoader(ShardedStateLoader):  # type: ignore[misc]
    """Loads files of ``ShardedStateLoader.save_model``; each rank reads its own files."""

    def __init__(self, load_config: Any) -> None:
        forward_log()
        self._how = parsed(translated(load_config), ("pattern",))
        theirs = copy.copy(load_config)
        theirs.model_loader_extra_config = self._how.of_engine
        super().__init__(theirs)
        self.load_config = load_config

    def download_model(self, model_config: Any) -> None:
        """Download nothing: the weights are read where they are."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Fill a model."""
        reason = SHARDED_TENSORS.misfit(self, model_config)
        if reason is not None:
            raise refusal(f"{SHARDED_TENSORS.label}: {reason}", COMMAND, "streamer_sharded")
        self.fill(model, model_config)

    def fill(self, model: Any, model_config: Any) -> None:
        """Fill a model, without a dry run before it; arguments and errors as for `load_weights`."""
        name = model_config.model_weights or model_config.model
        folder = weights_of(name, None, model_config.revision, self.load_config.download_dir)
        files = f"{folder.rstrip('/')}/{files_of_rank(self.pattern)}"
        missing = own_tensors(model)
        with stream(
            files, storage_options=self._how.storage_options, options=self._how.options, verify=self._how.verify
        ) as tensors:
            for name, tensor in tensors:
                target = missing.pop(name, None)
                if target is None:
                    raise FormatError(f"the model has no tensor {name!r}", uri=tensors.report.uri, hint=_HINT)
                for dimension, size in enumerate(tensor.shape):  # tensors of a model with LoRA are padded
                    target = target.narrow(dimension, 0, size)
                target.copy_(tensor)
        if missing:
            raise FormatError(f"the files lack the tensor {min(missing)!r}", uri=tensors.report.uri, hint=_HINT)
