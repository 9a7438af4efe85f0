"""What SGLang makes of a model on a CPU: its command line, its configuration, and ``get_model``.

Without its servers.
"""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from typing import Any

import torch
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.model_executor.model_runner_components.load_model_utils import build_load_config
from sglang.srt.model_loader import get_model
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs, prepare_server_args

ARGUMENTS = ("--device=cpu", "--dtype=float32", "--skip-tokenizer-init", "--attention-backend=torch_native")


def started(
    model: str | Path, *flags: str, load_format: str = "streamer", rank: int = 0
) -> tuple[ServerArgs, ModelConfig]:
    """Do what ``sglang serve`` does before it loads a model."""
    line = [f"--model-path={model}", *ARGUMENTS, *flags, f"--load-format={load_format}"]
    args = prepare_server_args(line)
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=rank))
    _join(args.tp_size, rank)
    initialize_dp_attention(args)
    return args, ModelConfig.from_server_args(args)


def load_config(args: ServerArgs, **named: Any) -> LoadConfig:
    """Return the configuration of the loader."""
    given = {
        "tp_rank": 0,
        "remote_instance_weight_transporter_engine": None,
        "remote_instance_weight_transporter_session_id": "",
        "draft_model_idx": None,
        "weight_cache_mode": "off",
        "weight_cache_socket": None,
    }
    return build_load_config(server_args=args, **(given | named))


def loaded(model: str | Path, *flags: str, load_format: str = "streamer", rank: int = 0) -> torch.nn.Module:
    """Load a model."""
    args, config = started(model, *flags, load_format=load_format, rank=rank)
    own = load_config(args, tp_rank=rank)
    return get_model(model_config=config, load_config=own, device_config=DeviceConfig("cpu"))


def assert_equal(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Compare parameters."""
    ours, theirs = dict(found.named_parameters()), dict(expected.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@functools.cache
def _join(ranks: int, rank: int) -> None:
    """Make the groups, of the widths that were published."""
    init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, backend="gloo")
    initialize_model_parallel(backend="gloo")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


port = _free_port()  # one for all ranks that are forks of this process
