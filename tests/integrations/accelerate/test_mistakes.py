"""What ``streamer.accelerate`` says of what is no checkpoint, and of what it does not read."""

from __future__ import annotations

import json
import tempfile

import pytest
import safetensors.torch
import torch

import streamer


@pytest.fixture(autouse=True)
def _no_private_folder_is_left(tmp_path_factory, monkeypatch):
    private = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    yield
    assert not list(private.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A model of one layer, in two shards."""
    shards = {"weight": "m-00001-of-00002.safetensors", "bias": "m-00002-of-00002.safetensors"}
    for name, tensor in torch.nn.Linear(4, 3).state_dict().items():
        safetensors.torch.save_file({name: tensor}, tmp_path / shards[name], {"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return tmp_path


def load(uri, **how):
    streamer.accelerate.load_checkpoint_in_model(torch.nn.Linear(4, 3), uri, **how)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(streamer.ObjectNotFoundError):
        load(tmp_path / "none")


def test_a_folder_without_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no \*\.safetensors file, but config\.json"):
        load(tmp_path)


def test_a_folder_of_pickles(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"pytorch_model\.bin has another format: convert it"):
        load(tmp_path)


def test_a_pickle(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(streamer.OptionError, match=r"pytorch_model\.bin: only safetensors .*Convert it"):
        load(tmp_path / "pytorch_model.bin")


def test_a_checkpoint_without_tensors_is_no_fault_of_accelerate_regression(tmp_path, caplog):
    safetensors.torch.save_file({}, tmp_path / "model.safetensors", {"format": "pt"})
    load(tmp_path, options=streamer.Options())
    assert "does not fit" not in caplog.text


def test_an_index_that_names_an_absent_shard(folder):
    (folder / "m-00002-of-00002.safetensors").unlink()
    for uri in (folder, folder / "model.safetensors.index.json"):
        with pytest.raises(streamer.ObjectNotFoundError, match=r"the index names shard 'm-00002-of.*does not exist"):
            load(uri)


def test_an_index_that_leaves_the_folder(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("m-00002", "../m-00002"))
    with pytest.raises(streamer.ShardIndexError, match=r"\.\."):
        load(folder)


def test_a_shard_that_was_cut(folder):
    shard = folder / "m-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(streamer.TruncatedError):
        load(folder)


def test_a_model_of_another_shape_is_the_original_s_error(folder):
    with pytest.raises(RuntimeError, match="size mismatch"):
        streamer.accelerate.load_checkpoint_in_model(torch.nn.Linear(5, 3), folder)


@pytest.mark.parametrize("wrong", [{"storage_options": 3}, {"options": {}}, {"fs": "s3"}])
def test_arguments_of_another_kind(folder, wrong):
    with pytest.raises(streamer.OptionError):
        load(folder, **wrong)
