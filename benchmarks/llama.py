"""Makes the Llama that inference libraries load: written once, in bfloat16, in shards of 256 MB."""

from __future__ import annotations

from pathlib import Path

WIDTH = 2048
LAYER_BYTES = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * 4 * WIDTH)


def make_llama(folder: Path, gib: float) -> Path:
    """Save a model of about `gib` GiB; 0 makes the smallest model, whose load time does not depend on its bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers = max(1, round(gib * (1 << 30) / LAYER_BYTES))
    width = WIDTH if gib else 32
    config = LlamaConfig(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, vocab_size=4096)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="256MB")
    return folder
