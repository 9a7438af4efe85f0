"""The load formats ``streamer`` and ``streamer_sharded``: vLLM's own loaders, with weights that this package reads.

Each process reads only the tensors that it needs. It does not read tensors of experts on other ranks, or of the main
model while it loads a draft. No process waits for another. ``streamer_sharded`` reads the state that each rank saved.

The first model's configuration is used for a dry run of our loaders and of vLLM's, from which they derive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.weight_utils import enable_tqdm

from streamer import _native
from streamer._stream import stream
from streamer.compat.hooks import Hook
from streamer.core.errors import FormatError
from streamer.integrations.serving.engine_hooks import (
    both_loaders,
    changed,
    forward_log,
    is_filled_alike,
    refusal,
    without_lines,
    without_url,
)
from streamer.integrations.serving.recorder import Recorder
from streamer.integrations.serving.weights_location import weights_of
from streamer.integrations.serving.weights_stream import parsed, stream_weights
from streamer.integrations.small_checkpoint import small_checkpoint
from streamer.integrations.vllm.hooks import COMMAND, LOGGER
from streamer.integrations.vllm.private_names import files_of_rank, is_left_out, own_tensors
from streamer.integrations.vllm.takeover import translated


def _is_filled_alike(loader: Any, model_config: Any) -> bool:
    """Whether our loader and vLLM's loader from which it derives fill a small model equally."""
    base, theirs_format = DefaultModelLoader, "safetensors"
    if isinstance(loader, ShardedStateLoader):
        base, theirs_format = ShardedStateLoader, "sharded_state"
    with small_checkpoint() as (location, expected), without_lines(base.__module__, weight_utils.__name__):
        if base is ShardedStateLoader:
            file = Path(location.uri, files_of_rank(None).replace("*", "0"))
            safetensors.torch.save_file(expected, file)
        small = changed(model_config, model=location.uri, model_weights="", revision=None)
        ours, theirs = both_loaders(loader, base, theirs_format, use_tqdm_on_load=False)
        return is_filled_alike(
            lambda model: ours.fill(model, small), lambda model: theirs.load_weights(model, small), expected
        )


TENSORS = Hook(
    DefaultModelLoader.__module__,
    "DefaultModelLoader.load_weights",
    without_url(COMMAND, "streamer"),
    positional=3,
    dry_run=_is_filled_alike,
)
SHARDED_TENSORS = Hook(
    ShardedStateLoader.__module__,
    "ShardedStateLoader.load_weights",
    without_url(COMMAND, "streamer_sharded"),
    positional=3,
    dry_run=_is_filled_alike,
)


_LOAD = "load_weights"


class StreamerModelLoader(DefaultModelLoader):  # type: ignore[misc]
    """Loads safetensors from any path or URL, or from the Hub."""

    def __init__(self, load_config: Any) -> None:
        forward_log(LOGGER)
        self.how = parsed(translated(load_config), ("enable_weights_track",))
        super().__init__(changed(load_config, model_loader_extra_config=self.how.of_engine))
        self.load_config = load_config
        self._began: float | None = None
        self.recorder = Recorder()
        self._undo: Callable[[], None] = lambda: None
        self._is_prepared = False

    def download_model(self, model_config: Any) -> None:
        """Download nothing: the weights are read where they are."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Fill a model: vLLM's own loader does it, with the tensors of `get_all_weights`."""
        reason = TENSORS.misfit(self, model_config)
        if reason is not None:
            raise refusal(f"{TENSORS.label}: {reason}", COMMAND, "streamer")
        self.fill(model, model_config)

    def fill(self, model: Any, model_config: Any) -> None:
        """Fill a model, without a dry run before it; arguments and errors as for `load_weights`."""
        self._began = None
        if self.how.is_deferred:
            self._record_once(model)
        try:
            super().load_weights(model, model_config)
        finally:
            self._undo()
        if self._began is None:
            raise refusal("DefaultModelLoader.load_weights requested no tensor", COMMAND, "streamer")

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors of a model, and those of its other checkpoints.

        A reload passes them to ``model.load_weights``, which then runs as in `fill`. The checkpoint is opened now, not
        with the first tensor: vLLM then takes the parameters away, and a reload that fails to open must change nothing.
        """
        can_record = isinstance(model, torch.nn.Module) and callable(getattr(model, _LOAD, None))
        if can_record and self.how.is_deferred and not self._is_prepared:
            self._record_once(model)
        primary = DefaultModelLoader.Source(
            model_config.model_weights or model_config.model,
            model_config.revision,
            allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
            is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None),
        )
        try:
            tensors = self._get_weights_iterator(primary)
        except BaseException:
            self._undo()
            raise
        return self._all_weights(tensors, model)

    def _record_once(self, model: Any) -> None:
        """Let the next call of ``model.load_weights`` record what becomes of the tensors, unless `_undo` is called."""
        own, original = vars(model).get(_LOAD), getattr(model, _LOAD)

        def undo() -> None:
            if self._is_prepared:
                self._is_prepared = False
                vars(model).pop(_LOAD, None)
                vars(model).update({} if own is None else {_LOAD: own})

        def load_weights(*arguments: Any, **named: Any) -> Any:
            undo()
            with self.recorder.around(model):
                return original(*arguments, **named)

        self._undo, self._is_prepared = undo, True
        vars(model)[_LOAD] = load_weights

    def _all_weights(
        self, of_primary: Iterator[tuple[str, torch.Tensor]], model: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        self._undo()  # something else than the model takes the tensors, and gets them with data
        _advise_huge_pages(model)
        yield from of_primary
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Open a checkpoint, and return its tensors."""
        folder = weights_of(source.model_or_path, source.subfolder, source.revision, self.load_config.download_dir)
        if self._began is None:
            self._began = self.counter_before_loading_weights = time.perf_counter()  # for a line in vLLM's log
        weights = stream_weights(
            folder,
            self.how,
            self._is_needed(source),
            patterns=source.allow_patterns_overrides,
            ignored=self.load_config.ignore_patterns,
            progress=enable_tqdm(self.load_config.use_tqdm_on_load),
            recorder=self.recorder if self._is_prepared or self.recorder.is_active else None,
        )
        return _with_prefix(source.prefix, weights)

    def _is_needed(self, source: Any) -> Callable[[str], bool]:
        left_out, is_unused = is_left_out(self), source.is_unused_weight

        def is_needed(name: str) -> bool:
            if should_skip_weight(name, getattr(self, "local_expert_ids", None)) or left_out(name):
                return False
            return is_unused is None or not is_unused(name)

        return is_needed


def _with_prefix(
    prefix: str, weights: AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]
) -> Iterator[tuple[str, torch.Tensor]]:
    with weights as tensors:
        for name, tensor in tensors:
            yield prefix + name, tensor


def _advise_huge_pages(model: Any) -> None:
    """Advise huge pages for untouched parameters on the CPU: filling them then takes half the time."""
    if isinstance(model, torch.nn.Module):
        on_host = [each for each in model.parameters() if each.device.type == "cpu" and each.layout is torch.strided]
        _native.advise_huge_pages([(each.data_ptr(), each.nbytes) for each in on_host])


_HINT = "Save the state again, with the same version of vLLM and as many ranks"


class StreamerShardedLoader(ShardedStateLoader):  # type: ignore[misc]
    """Loads files of ``ShardedStateLoader.save_model``; each rank reads its own files."""

    def __init__(self, load_config: Any) -> None:
        forward_log(LOGGER)
        self.how = parsed(translated(load_config), ("pattern",))
        super().__init__(changed(load_config, model_loader_extra_config=self.how.of_engine))
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
            files, storage_options=self.how.storage_options, options=self.how.options, verify=self.how.verify
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
