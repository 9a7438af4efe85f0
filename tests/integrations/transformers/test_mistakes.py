"""What ``streamer.transformers`` says of folders that hold no model, and of what it does not read."""

from __future__ import annotations

import io
import json
import logging
import re
import tempfile

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import streamer
from streamer.integrations import model_folder, small_files
from streamer.integrations.model_folder import ModelFolder


@pytest.fixture(autouse=True)
def _no_private_folder_is_left(tmp_path_factory, monkeypatch):
    private = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    yield
    assert not list(private.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A model in several shards."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model", max_shard_size="50KB")
    return tmp_path / "model"


def load(folder, cls=AutoModelForCausalLM, **named):
    return streamer.transformers.from_pretrained(cls, folder, **named)


def remove(folder, pattern):
    for path in folder.glob(pattern):
        path.unlink()


def test_a_folder_without_a_checkpoint(folder):
    remove(folder, "*.safetensors*")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no \*\.safetensors file, but config\.json"):
        load(folder)


def test_a_folder_of_pickles(folder):
    remove(folder, "*.safetensors*")
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"pytorch_model\.bin has another format: convert it"):
        load(folder)


def test_a_folder_without_a_configuration(folder):
    (folder / "config.json").unlink()
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no config\.json, but generation_config.*config="):
        load(folder)


@pytest.mark.parametrize("cls", [AutoModelForCausalLM, AutoTokenizer])
def test_a_missing_folder_is_named(tmp_path, cls):
    with pytest.raises(streamer.ObjectNotFoundError, match="there is no such folder, or it is empty"):
        load(tmp_path / "none", cls)


@pytest.mark.parametrize("library", [streamer.transformers, streamer.diffusers])
def test_a_url_where_the_class_belongs(library):
    with pytest.raises(
        streamer.UsageError, match=r"of the type str, has no method from_pretrained\. Pass the class first"
    ):
        library.from_pretrained("s3://bucket/model", AutoModelForCausalLM)


def test_a_configuration_without_a_type_writes_no_weights_and_blames_no_hook_regression(folder, monkeypatch, caplog):
    """Before, the weights of this model and of every later one in the process were written to the disk."""
    written = []
    monkeypatch.setattr(ModelFolder, "write_weights", lambda folder: written.append(folder.path))
    config = json.loads((folder / "config.json").read_text())
    named = {name: value for name, value in config.items() if name != "model_type"}
    (folder / "config.json").write_text(json.dumps(named))
    with pytest.raises(ValueError, match="model_type"):
        load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    load(folder)
    assert not written
    assert "does not fit" not in caplog.text


def test_an_error_of_transformers_names_the_url(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(OSError, match=re.escape(f"'{folder}/config.json' is not a valid JSON file")):
        load(folder)


def test_the_report_of_transformers_names_the_url(folder):
    shard = min(folder.glob("*.safetensors"))
    tensors = safetensors.torch.load_file(shard)
    name, tensor = tensors.popitem()
    safetensors.torch.save_file({**tensors, f"{name}.other": tensor}, shard, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(f'"{name}"', f'"{name}.other"'))
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    logging.getLogger("transformers").addHandler(handler)
    try:
        load(folder)
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert re.search(f"LOAD REPORT.* from: {re.escape(str(folder))}\n", shown.getvalue())


def test_an_index_that_names_an_absent_shard(folder):
    remove(folder, "model-00002-*")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"the index names shard 'model-00002-of.*does not exist"):
        load(folder)


def test_the_index_of_a_variant_that_names_an_absent_shard(folder):
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, variant="fp16", max_shard_size="50KB")
    load(folder, variant="fp16")
    remove(folder, "model.fp16-00002-*")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"index\.fp16\.json names shard 'model\.fp16-00002"):
        load(folder, variant="fp16")


def test_a_malformed_index_beside_one_file_is_of_no_use(tmp_path):
    small = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("no JSON")
    load(tmp_path)


def test_an_index_that_leaves_the_folder(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))
    with pytest.raises(streamer.ShardIndexError, match=r"\.\."):
        load(folder)


def test_a_shard_that_was_cut(folder):
    shard = next(folder.glob("model-00002-*"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(streamer.TruncatedError):
        load(folder)


def test_an_adapter_without_its_weights(folder, monkeypatch):
    monkeypatch.setattr(model_folder, "find_spec", lambda _: object())
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "x", "peft_type": "LORA"}))
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no adapter_model\.safetensors"):
        load(folder)


def test_an_adapter_without_peft(tmp_path, monkeypatch):
    monkeypatch.setattr(model_folder, "find_spec", lambda _: None)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(streamer.UsageError, match="pip install peft"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"base_model_name_or_path": 3}'])
def test_an_adapter_of_no_model(tmp_path, text, monkeypatch):
    monkeypatch.setattr(model_folder, "find_spec", lambda _: object())
    (tmp_path / "adapter_config.json").write_text(text)
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(streamer.FormatError, match="base_model_name_or_path"):
        load(tmp_path)


@pytest.mark.parametrize("asked", [{"gguf_file": "a.gguf"}, {"use_safetensors": False}])
def test_what_is_not_read_from_a_url(folder, asked):
    with pytest.raises(streamer.OptionError, match="Download the folder"):
        load(folder, **asked)


def test_small_files_that_are_large(folder, monkeypatch, caplog):
    monkeypatch.setattr(small_files, "LARGEST_BYTES", 1 << 10)
    (folder / "data.json").write_text(" " * 2000)
    load(folder)
    assert any("data.json: not pulled" in each for each in caplog.messages)
