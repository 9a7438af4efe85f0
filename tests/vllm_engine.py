"""What vLLM makes of tiny models on a CPU.

Without its engine core, and not by ``BaseModelLoader.load_model``, which needs a device.
"""

from __future__ import annotations

import functools
import shutil
import socket
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import destroy_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

import streamer

ARGUMENTS = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "max_model_len": 64}


def note_streams() -> list[streamer.Stream[Any]]:
    """Return a list to which each stream that this process begins from now on is added."""
    streams: list[streamer.Stream[Any]] = []
    begin = streamer.Stream.__init__

    def noted(stream: streamer.Stream[Any], *arguments: Any, **named: Any) -> None:
        begin(stream, *arguments, **named)
        streams.append(stream)

    streamer.Stream.__init__ = noted  # type: ignore[method-assign]
    return streams


def config_of(model: str | Path, load_format: str = "streamer", **named: Any) -> VllmConfig:
    """Return the configuration that ``vllm serve MODEL --load-format FORMAT`` makes."""
    return EngineArgs(model=str(model), load_format=load_format, **(ARGUMENTS | named)).create_engine_config()


def created(config: VllmConfig) -> torch.nn.Module:
    """Create the model, not filled."""
    with set_current_vllm_config(config):
        join(is_moe=config.model_config.is_moe)
        loader = get_model_loader(config.load_config)
        return loader.create_model(vllm_config=config, model_config=config.model_config)


def fill(model: torch.nn.Module, config: VllmConfig) -> dict[str, torch.Tensor]:
    """Load its weights; give its parameters."""
    with set_current_vllm_config(config):
        get_model_loader(config.load_config).load_weights(model, config.model_config)
    return dict(model.named_parameters())


def loaded(model: str | Path, load_format: str = "streamer", **named: Any) -> dict[str, torch.Tensor]:
    """Do all of this."""
    config = config_of(model, load_format, **named)
    return fill(created(config), config)


def save_state(folder: Path, saved: Path, max_bytes: int | None = None) -> Path:
    """Save the state of a rank, as vLLM's own example does.

    Args:
        folder: Of the model.
        saved: Where to.
        max_bytes: Of a file; None: vLLM's own.
    """
    config = config_of(folder, "safetensors")
    model = created(config)
    fill(model, config)
    saved.mkdir()
    with set_current_vllm_config(config):
        ShardedStateLoader.save_model(model, str(saved), max_size=max_bytes)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(folder / name, saved)
    return saved


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Compare parameters."""
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@functools.cache
def _join_world() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    init_distributed_environment(1, 0, address, 0, backend="gloo")


def join(*, is_moe: bool) -> None:
    """Make the groups of one rank; those of a mixture of experts have one more."""
    _join_world()
    if is_moe is not _joined.get("is_moe"):
        destroy_model_parallel()
        initialize_model_parallel(1, 1)
        _joined["is_moe"] = is_moe


_joined: dict[str, bool] = {}
