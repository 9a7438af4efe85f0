"""A tiny checkpoint with a draft: the multi-token prediction of Qwen3-Next, beside the main model's layers."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from transformers import Qwen3NextConfig

HIDDEN, EXPERTS, OF_EXPERT, HEAD = 64, 4, 32, 16
DRAFT = {"hf_overrides": {"architectures": ["Qwen3NextMTP"]}}  # what vLLM makes of the draft's configuration


def save_with_draft(path: Path) -> Path:
    """Save configuration and weights; those of the main model are not all that it would need."""
    Qwen3NextConfig(
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD,
        linear_key_head_dim=HEAD,
        linear_value_head_dim=HEAD,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=OF_EXPERT,
        shared_expert_intermediate_size=OF_EXPERT,
        num_experts_per_tok=2,
        num_experts=EXPERTS,
        architectures=["Qwen3NextForCausalLM"],
    ).save_pretrained(path)
    torch.manual_seed(0)
    shapes = {"model.embed_tokens.weight": (256, HIDDEN), "lm_head.weight": (256, HIDDEN), **_of_draft()}
    shapes |= {f"model.layers.{layer}.mlp.gate.weight": (EXPERTS, HIDDEN) for layer in range(4)}
    safetensors.torch.save_file({name: torch.rand(shape) for name, shape in shapes.items()}, path / "model.safetensors")
    return path


def _of_draft() -> dict[str, tuple[int, ...]]:
    layer = {
        "self_attn.q_proj": (2 * 4 * HEAD, HIDDEN),  # with its gate
        "self_attn.k_proj": (2 * HEAD, HIDDEN),
        "self_attn.v_proj": (2 * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 4 * HEAD),
        "self_attn.q_norm": (HEAD,),
        "self_attn.k_norm": (HEAD,),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate": (EXPERTS, HIDDEN),
        "mlp.shared_expert_gate": (1, HIDDEN),
    }
    for expert in ("shared_expert", *(f"experts.{number}" for number in range(EXPERTS))):
        layer |= {f"mlp.{expert}.{part}_proj": (OF_EXPERT, HIDDEN) for part in ("gate", "up")}
        layer[f"mlp.{expert}.down_proj"] = (HIDDEN, OF_EXPERT)
    around = {"fc": (HIDDEN, 2 * HIDDEN), "norm": (HIDDEN,), "pre_fc_norm_hidden": (HIDDEN,)}
    around["pre_fc_norm_embedding"] = (HIDDEN,)
    return {f"mtp.{name}.weight": shape for name, shape in around.items()} | {
        f"mtp.layers.0.{name}.weight": shape for name, shape in layer.items()
    }
