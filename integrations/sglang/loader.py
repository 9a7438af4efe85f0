"""The load format ``streamer``: SGLang's own loader, with weights that this package reads.

Each process reads the tensors that it needs, and does not wait for others. `LoadConfig.load_group` names processes that
may wait for each other; none does, neither at the first start nor when the stages of a pipeline reload one by one.

The first model's configuration is used for a dry run of our loader and of SGLang's, from which it derives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.runtime_context import get_model, get_server_args
from sglang.srt.utils.model_file_verifier import verify
from sglang.srt.utils.runai_utils import ObjectStorageModel

from streamer.compat.hooks import Hook
from streamer.core.errors import UsageError
from streamer.core.log import OwnLogger
from streamer.integrations.serving.engine_hooks import (
    SmallModel,
    both_loaders,
    changed,
    is_filled_alike,
    refusal,
    without_lines,
    without_url,
)
from streamer.integrations.serving.recorder import Recorder
from streamer.integrations.serving.weights_location import is_url, weights_of
from streamer.integrations.serving.weights_stream import parsed, stream_weights
from streamer.integrations.sglang.hooks import COMMAND
from streamer.integrations.sglang.private_names import (
    all_weights,
    is_of_another_draft,
    load_in_this_thread,
    named_for_draft,
)
from streamer.integrations.small_checkpoint import small_checkpoint

_log = OwnLogger()


def _is_filled_alike(loader: Any, model_config: Any) -> bool:
    """Whether our loader and SGLang's loader from which it derives fill a small model equally."""
    with small_checkpoint() as (location, expected), without_lines(DefaultModelLoader.__module__):
        small = changed(model_config, model_path=location.uri, model_weights="", revision=None)
        ours, theirs = both_loaders(loader, DefaultModelLoader, "safetensors", draft_model_idx=None)
        return is_filled_alike(_filling(ours, small), _filling(theirs, small), expected)


def _filling(loader: Any, model_config: Any) -> Callable[[SmallModel], None]:
    """Return a function that fills a model as ``DefaultModelLoader.load_model`` does."""

    def fill(model: SmallModel) -> None:
        loader.load_weights_and_postprocess(model, all_weights(loader, model_config, model), torch.device("cpu"))

    return fill


TENSORS = Hook(
    DefaultModelLoader.__module__,
    "DefaultModelLoader._get_all_weights",
    without_url(COMMAND, "streamer"),
    positional=3,
    dry_run=_is_filled_alike,
)


class StreamerModelLoader(DefaultModelLoader):  # type: ignore[misc]
    """Loads safetensors from any path or URL, or from the Hub; also for ``update_weights_from_disk``."""

    def __init__(self, load_config: Any) -> None:
        modelopt = load_config.modelopt_config
        if modelopt.checkpoint_restore_path or modelopt.checkpoint_save_path or modelopt.export_path:
            raise UsageError("the load format 'streamer' does not quantize with ModelOpt", hint="Use another format")
        self.how = parsed(load_config.model_loader_extra_config or _of_command_line(), ())
        super().__init__(changed(load_config, model_loader_extra_config={}))
        self.load_config = load_config
        self._began: float | None = None
        self.recorder = Recorder()

    def download_model(self, model_config: Any) -> None:
        """Download nothing: the weights are read where they are."""

    def load_model(self, **named: Any) -> Any:
        """Create and fill a model: SGLang's own loader does it, with the tensors of `_get_weights_iterator`."""
        reason = TENSORS.misfit(self, named.get("model_config"))
        if reason is not None:
            raise refusal(f"{TENSORS.label}: {reason}", COMMAND, "streamer")
        self._began = None
        model = super().load_model(**named)
        if self._began is None:
            raise refusal("DefaultModelLoader.load_model requested no tensor", COMMAND, "streamer")
        return model

    def load_weights_and_postprocess(self, model: Any, weights: Any, target_device: Any) -> None:
        """Fill a model, and process its layers; a reload calls it, too."""
        steps = [getattr(DefaultModelLoader, name, None) for name in ("load_weights_only", "postprocess_weights")]
        reads_whole = self.how.is_deferred and _quantizes_each_tensor(model)
        if reads_whole:
            _log.info("Tensors are read whole, as SGLang quantizes each of them when it arrives")
        if not self.how.is_deferred or reads_whole or None in steps:
            super().load_weights_and_postprocess(model, weights, target_device)
            return
        with self.recorder.around(model):
            self.load_weights_only(model, weights, target_device)
        self.postprocess_weights(model, target_device)

    def _get_weights_iterator(self, source: Any, **_: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors of one source; SGLang calls it for the first load and for each reload."""
        folder = weights_of(_remote(source), None, source.revision, self.load_config.download_dir)
        _compare_checksums(folder)
        if self._began is None:
            self._began = self.counter_before_loading_weights = time.perf_counter()  # for a line in SGLang's log
        draft = self.load_config.draft_model_idx
        # Opened now, not with the first tensor: an update that fails to open must change nothing.
        stream = stream_weights(
            folder,
            self.how,
            lambda name: not is_of_another_draft(name, draft),
            patterns=source.allow_patterns_overrides,
            ignored=self.load_config.ignore_patterns,
            progress=None,
            recorder=self.recorder,
        )
        if draft is not None:
            return named_for_draft(self._tensors(stream), source.prefix, draft)
        return ((source.prefix + name, tensor) for name, tensor in self._tensors(stream))

    def _tensors(
        self, stream: AbstractContextManager[Iterable[tuple[str, torch.Tensor]]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        with stream as tensors:
            for name, tensor in tensors:
                if self.recorder.is_active:  # it sees its own thread alone
                    load_in_this_thread(tensor)
                yield name, tensor


def _quantizes_each_tensor(model: Any) -> bool:
    """Whether loaders compute with each tensor, which would make a read of its own of it."""
    config = getattr(model, "quant_config", None)
    is_nvfp4 = not getattr(config, "is_checkpoint_nvfp4_serialized", True)
    is_quark = getattr(config, "online_scheme", None) is not None or type(config).__name__ == "QuarkInt4Fp8Config"
    return is_nvfp4 or is_quark


def _of_command_line() -> Any:
    given = get_model().model_loader_extra_config if _is_serving() else None
    return json.loads(given) if isinstance(given, str) else given


def _is_serving() -> bool:
    try:
        return get_server_args() is not None
    except ValueError:  # this process has no server arguments
        return False


def _remote(source: Any) -> str:
    """Return the URL of the weights: SGLang's source may name the folder of the pulled small files."""
    weights = getattr(source.model_config, "model_weights", None)
    if weights and source.model_or_path == ObjectStorageModel.get_path(weights):
        return str(weights)
    return str(source.model_or_path)


def _compare_checksums(place: str) -> None:
    """Compare the files with ``--model-checksum``, as SGLang's own loader does."""
    checksums = get_model().model_checksum if _is_serving() else None
    if checksums is None:
        return
    if is_url(place):
        hint = 'Compare with the digests of the storage: --model-loader-extra-config \'{"verify": "auto"}\''
        raise UsageError("--model-checksum needs a local folder", uri=place, hint=hint)
    verify(model_path=place, checksums_source=checksums or place)
