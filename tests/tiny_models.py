"""Tiny models of transformers, saved as checkpoints for serving engines."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def save_llama(path: Path, seed: int = 0) -> Path:
    """Save a Llama in several shards."""
    torch.manual_seed(seed)
    config = LlamaConfig(num_hidden_layers=4, tie_word_embeddings=False, **SIZES)
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="200KB")
    return path


def save_mixtral(path: Path) -> Path:
    """Save a mixture of 8 experts, each expert's tensors under its own names."""
    torch.manual_seed(0)
    config = MixtralConfig(num_hidden_layers=2, num_local_experts=8, **SIZES)
    MixtralForCausalLM(config).save_pretrained(path, max_shard_size="500KB")
    return path
