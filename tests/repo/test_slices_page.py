"""``docs/slices.md`` is true: its examples run, and each gives the parts that the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pages import blocks, run_examples, text_of
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

PAGE = text_of("docs/slices.md")
EXAMPLES = blocks("docs/slices.md")
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    LlamaForCausalLM(LlamaConfig(**SMALL)).bfloat16().save_pretrained(tmp_path / "llama")
    (tmp_path / "mixture").mkdir()
    experts = {f"layers.0.experts.{number}.up.weight": torch.full((2, 2), number) for number in range(8)}
    save_file({**experts, "layers.0.norm.weight": torch.ones(2)}, tmp_path / "mixture/model.safetensors")
    return {"llama": tmp_path / "llama", "mixture": tmp_path / "mixture", "rank": 1, "ranks": 4, "experts_per_rank": 2}


@pytest.mark.usefixtures("one_process")
def test_the_examples_run_one_after_another(names: dict[str, Any]) -> None:
    whole = load_file(names["llama"] / "model.safetensors")
    up, down, query = (f"model.layers.1.{part}.weight" for part in ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj"))
    assert len(EXAMPLES) == 6

    run_examples("docs/slices.md", names, slice(0, 1))
    assert torch.equal(names["tensors"][up], whole[up][12:24])
    assert torch.equal(names["tensors"][down], whole[down][:, 12:24])
    assert torch.equal(names["tensors"]["lm_head.weight"], whole["lm_head.weight"][16:32])
    assert torch.equal(names["tensors"]["model.norm.weight"], whole["model.norm.weight"])

    run_examples("docs/slices.md", names, slice(1, 2))
    assert torch.equal(names["tensors"][down], whole[down][:, 12:24])
    assert torch.equal(names["tensors"]["lm_head.weight"], whole["lm_head.weight"][16:32])

    run_examples("docs/slices.md", names, slice(2, 3))
    assert sorted(names["tensors"]) == [f"layers.0.experts.{number}.up.weight" for number in (2, 3)] + [
        "layers.0.norm.weight"
    ]

    run_examples("docs/slices.md", names, slice(3, 4))
    assert torch.equal(names["tensors"][query], whole[query][8:16])
    assert torch.equal(names["tensors"][down], whole[down][:, 12:24])
    assert torch.equal(names["tensors"]["model.embed_tokens.weight"], whole["model.embed_tokens.weight"][16:32])
    assert torch.equal(names["tensors"]["model.norm.weight"], whole["model.norm.weight"])

    run_examples("docs/slices.md", names, slice(4, 5))
    for name in (up, down, "model.norm.weight"):
        assert isinstance(names["tensors"][name], DTensor)
        assert torch.equal(names["tensors"][name].full_tensor(), whole[name])

    run_examples("docs/slices.md", names, slice(5, 6))
    assert torch.equal(names["target"]["lm_head.weight"], whole["lm_head.weight"][16:32])


def test_the_page_lists_exactly_the_existing_ways() -> None:
    from streamer.core.checkpoint import parallel_plans as tensor_parallel

    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert {way for row in rows for way in re.findall(r"`([a-z_]+)`", row.split("|")[1])} == {
        *tensor_parallel.KNOWN_WAYS
    }
