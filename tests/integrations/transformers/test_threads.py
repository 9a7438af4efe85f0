"""Threads that load models of transformers at the same time get what one thread gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import streamer


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16], ids=str, name="folder")
def _folder(request, tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    path = tmp_path_factory.mktemp("threads") / "model"
    LlamaForCausalLM(config).to(request.param).save_pretrained(path, max_shard_size="20KB")
    return path


def test_models_are_equal_and_the_default_dtype_is_what_it_was(folder):
    def load(_):
        return streamer.transformers.from_pretrained(AutoModelForCausalLM, folder, dtype="auto")

    expected = load(0).state_dict()
    with ThreadPoolExecutor(6) as pool:
        models = list(pool.map(load, range(18)))
    assert torch.get_default_dtype() is torch.float32
    for model in models:
        found = model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
