"""Tiny models of transformers, saved as checkpoints for serving engines."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}

ADAPTER: dict[str, object] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "tiny/llama",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
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


def save_models(path: Path) -> dict[str, Path]:
    """Save models whose loaders do different things: a plain one, biases, tied embeddings, and experts."""
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    of_experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
    models: dict[str, PreTrainedModel] = {
        "llama": LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, **sizes)),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=False, **sizes)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=True, head_dim=32, **sizes)),
        "mixtral": MixtralForCausalLM(MixtralConfig(num_local_experts=8, **sizes)),
        "qwen3_moe": Qwen3MoeForCausalLM(Qwen3MoeConfig(tie_word_embeddings=False, head_dim=32, **of_experts, **sizes)),
    }
    for name, model in models.items():
        for tensor in model.parameters():  # biases and norms, too, which are zeros and ones
            torch.nn.init.normal_(tensor)
        model.save_pretrained(path / name, max_shard_size="700KB")
    return {name: path / name for name in models}


def save_adapter(path: Path) -> Path:
    """Save a LoRA of rank 4 for the first layers of the Llama, as PEFT does."""
    torch.manual_seed(1)
    width = SIZES["hidden_size"]
    tensors = {}
    for name in ("q_proj", "v_proj"):
        rows = width if name == "q_proj" else width // 2
        start = f"base_model.model.model.layers.0.self_attn.{name}"
        tensors |= {f"{start}.lora_A.weight": torch.randn(4, width), f"{start}.lora_B.weight": torch.randn(rows, 4)}
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(ADAPTER))
    return path
