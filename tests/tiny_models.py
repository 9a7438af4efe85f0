"""Tiny models of transformers, saved as checkpoints for serving engines."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
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


_STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
_DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QUANTIZATIONS: dict[str, dict[str, object]] = {
    "fp8": _STATIC,
    "fp8_blocks": {**_DYNAMIC, "weight_block_size": [32, 32]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
}


def save_quantized(folder: Path, saved: Path, kind: str) -> Path:
    """Save a model again as a quantized one: its tensors have the right shapes, and other values; or in 16 bits."""
    saved.mkdir(parents=True)
    config = json.loads((folder / "config.json").read_text())
    if kind in QUANTIZATIONS:
        config["quantization_config"] = QUANTIZATIONS[kind]
    (saved / "config.json").write_text(json.dumps(config))
    (saved / "generation_config.json").write_bytes((folder / "generation_config.json").read_bytes())
    made: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            is_linear = ".layers." in name and tensor.ndim == 2 and not name.endswith("gate.weight")
            is_linear &= kind in QUANTIZATIONS
            made |= _quantized(name.removesuffix("weight"), tensor, kind) if is_linear else {name: tensor.half()}
    save_file(made, saved / "model.safetensors")
    return saved


def _quantized(prefix: str, weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    rows, columns = weight.shape
    if kind == "fp8":
        scales = {f"{prefix}weight_scale": torch.rand(()), f"{prefix}input_scale": torch.rand(())}
        return {f"{prefix}weight": weight.to(torch.float8_e4m3fn), **scales}
    if kind == "fp8_blocks":
        scale = torch.rand(-(-rows // 32), -(-columns // 32))
        return {f"{prefix}weight": weight.to(torch.float8_e4m3fn), f"{prefix}weight_scale_inv": scale}
    packed = (columns // 8, rows) if kind == "gptq" else (columns, rows // 8)
    found = {"qweight": _integers(*packed), "qzeros": _integers(columns // 32, rows // 8)}
    found["scales"] = torch.rand(columns // 32, rows).half()
    if kind == "gptq":
        found["g_idx"] = (torch.arange(columns) // 32).int()
    return {prefix + name: tensor for name, tensor in found.items()}


def _integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


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
