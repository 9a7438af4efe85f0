"""Tiny models, and what vLLM makes of them on a CPU.

Without its engine core, and not by ``BaseModelLoader.load_model``, which needs a device.
"""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import destroy_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader

ARGUMENTS = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "max_model_len": 64}


def save_llama(path: Path, seed: int = 0) -> Path:
    """Save a Llama in several shards."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="200KB")
    return path


def save_mixtral(path: Path) -> Path:
    """Save a mixture of 8 experts, each expert's tensors under its own names."""
    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        vocab_size=256,
    )
    MixtralForCausalLM(config).save_pretrained(path, max_shard_size="500KB")
    return path


def config_of(model: str | Path, load_format: str = "streamer", **named: Any) -> VllmConfig:
    """Give the configuration that ``vllm serve MODEL --load-format FORMAT`` makes."""
    return EngineArgs(model=str(model), load_format=load_format, **(ARGUMENTS | named)).create_engine_config()


def created(config: VllmConfig) -> torch.nn.Module:
    """Create the model, not filled."""
    with set_current_vllm_config(config):
        _join(is_moe=config.model_config.is_moe)
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


def _join(*, is_moe: bool) -> None:
    """Make the groups of one rank; those of a mixture of experts have one more."""
    _join_world()
    if is_moe is not _joined.get("is_moe"):
        destroy_model_parallel()
        initialize_model_parallel(1, 1)
        _joined["is_moe"] = is_moe


_joined: dict[str, bool] = {}
