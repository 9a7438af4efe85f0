"""Adapters (PEFT) at a URL, with the model that they name."""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import streamer

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft asks for it
]

WORDS = torch.arange(1, 9)[None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and an adapter of it that names its folder."""
    root = tmp_path_factory.mktemp("peft")
    torch.manual_seed(0)
    small = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    LlamaForCausalLM(small).save_pretrained(root / "model")
    model = LlamaForCausalLM.from_pretrained(root / "model")
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(model, lora).save_pretrained(root / "adapter")
    return root


def logits(model):
    with torch.no_grad():
        return model.eval()(WORDS).logits


@pytest.fixture(scope="module")
def expected(folders):
    adapted = logits(AutoModelForCausalLM.from_pretrained(folders / "adapter"))
    assert not torch.equal(adapted, logits(AutoModelForCausalLM.from_pretrained(folders / "model")))
    return adapted


@pytest.mark.parametrize("is_at_url", [True, False])
def test_an_adapter_comes_with_the_model_that_it_names(folders, s3_server, expected, is_at_url, tmp_path):
    model = s3_server.upload_folder(folders / "model", "private", "peft/model")
    config = json.loads((folders / "adapter/adapter_config.json").read_text())
    for path in (folders / "adapter").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config["base_model_name_or_path"] = model if is_at_url else str(folders / "model")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    url = s3_server.upload_folder(tmp_path, "private", f"peft/adapter{is_at_url:d}")
    for cls in (AutoModelForCausalLM, LlamaForCausalLM):
        ours = streamer.transformers.from_pretrained(cls, url, storage_options=s3_server.storage_options())
        assert torch.equal(logits(ours), expected)


def test_a_model_may_have_an_adapter_beside_it(folders, s3_server, expected):
    s3_server.upload_folder(folders / "adapter", "private", "peft/both")
    url = s3_server.upload_folder(folders / "model", "private", "peft/both")
    ours = streamer.transformers.from_pretrained(AutoModelForCausalLM, url, storage_options=s3_server.storage_options())
    assert torch.equal(logits(ours), expected)
