"""A checkpoint of two small tensors in two files, for the dry runs of hooks."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch

from streamer.compat.hooks import imported
from streamer.core.options.options import Options
from streamer.integrations.library_calls import Location

_log = logging.getLogger("streamer")  # through which the lines of all modules pass


@contextmanager
def small_checkpoint(stem: str = "model") -> Iterator[tuple[Location, dict[str, torch.Tensor]]]:
    """Create the checkpoint for a ``with`` block; yield its location, from which the engine reads, and its tensors.

    The tensors are the state of a module whose ``layer`` is a ``torch.nn.Linear(3, 2)``. In the block, torch's default
    device is the CPU, whatever the caller's defaults are; the dtype is float32.
    """
    with tempfile.TemporaryDirectory(prefix="streamer-") as path, torch.device("cpu"):
        weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) + 0.5
        tensors = {"layer.weight": weight, "layer.bias": torch.tensor([-1, 7], dtype=torch.float32)}
        shards = {name: f"{stem}-0000{number}-of-00002.safetensors" for number, name in enumerate(tensors, 1)}
        for name, shard in shards.items():
            safetensors.torch.save_file({name: tensors[name]}, Path(path, shard), {"format": "pt"})
        Path(path, f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
        with _without_reports(path):
            yield Location(uri=path, options=Options()), tensors  # with options, the engine reads local files, too


@contextmanager
def without_progress_bars(package: str) -> Iterator[None]:
    """Hide the progress bars of transformers or diffusers inside the block."""
    bars = imported(f"{package}.utils.logging")
    was_shown = bars.is_progress_bar_enabled()
    if was_shown:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            bars.enable_progress_bar()


@contextmanager
def _without_reports(path: str) -> Iterator[None]:
    """Suppress log lines about loads below a path, which the user did not start."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return path not in record.getMessage()

    _log.addFilter(is_of_others)
    try:
        yield
    finally:
        _log.removeFilter(is_of_others)
