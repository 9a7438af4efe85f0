"""Layers of a model that transformers reads after the load: ``generate(use_mtp=True)``, from 5.24 on."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from transformers import modeling_layers

import streamer

pytestmark = pytest.mark.server

if not hasattr(modeling_layers, "MtpModel"):
    pytest.skip("this version of transformers has no such layers", allow_module_level=True)

LAYERS = 46  # by which the class knows the layer that it does not load: that of the smaller of two models


@pytest.fixture(scope="module", params=["1GB", "100KB"], ids=["one file", "shards"])
def folder(request, tmp_path_factory):
    """A mixture of experts, dense here, with one layer more."""
    torch.manual_seed(0)
    config = transformers.Glm4MoeConfig(
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS + 1,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=64,
        num_nextn_predict_layers=1,
        pad_token_id=0,
    )
    model = transformers.Glm4MoeForCausalLM(config)
    late = modeling_layers.MtpModel(model, 1)
    names = {
        name: name.replace("layers.0.", f"model.layers.{LAYERS}.").replace("mtp_block.", "")
        for name in late.state_dict()
    }
    path = tmp_path_factory.mktemp("late") / "model"
    own = {
        names[name]: torch.randn_like(each) for name, each in late.state_dict().items() if name.startswith("layers.0.")
    }
    model.save_pretrained(path, state_dict={**model.state_dict(), **own}, max_shard_size=request.param)
    saved = {name for file in path.glob("*.safetensors") for name in safetensors.torch.load_file(file)}
    assert [name for name in saved if f".{LAYERS}." in name]
    return path


def written(model, **how):
    return model.generate(torch.arange(1, 9)[None], max_new_tokens=6, do_sample=False, **how)


def test_a_model_from_s3_predicts_several_tokens_as_the_folder_s(folder, s3_server, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = s3_server.upload_folder(folder, "private", f"late/{len(list(folder.iterdir()))}")
    theirs = transformers.Glm4MoeForCausalLM.from_pretrained(folder)
    ours = streamer.transformers.from_pretrained(
        transformers.Glm4MoeForCausalLM, url, storage_options=s3_server.storage_options()
    )
    expected, got = (modeling_layers.MtpModel.from_pretrained(each).state_dict() for each in (theirs, ours))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    assert torch.equal(written(ours, use_mtp=True), written(theirs, use_mtp=True))
    assert ours.name_or_path == url
    assert not list(tmp_path.rglob("*.safetensors")) or all(
        file.stat().st_size == 0 for file in tmp_path.rglob("*.safetensors")
    )
    del ours
    gc.collect()
    assert not list(Path(tmp_path).iterdir())
    assert modeling_layers.safe_open is safetensors.safe_open
