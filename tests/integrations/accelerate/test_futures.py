"""Versions of accelerate that do not exist: every checkpoint still fills its module with equal tensors."""

from __future__ import annotations

import inspect
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import init_empty_weights
from accelerate.utils import modeling
from tiny_models import save_llama
from transformers import AutoConfig, LlamaForCausalLM

import streamer
from streamer.compat import hooks

pytestmark = pytest.mark.server

READERS = ("safe_open(", "safe_load_file(")
CHANGED = "(lambda *a, **k: {{n: {} for n, t in safe_load_file(*a, **k).items()}})("
IS_OURS = "'streamer' in safe_load_file.__module__"
FUTURES = {
    "no such name": ("file_of(", "file_from("),
    "another signature": ("safe_open(path=", "safe_load_file(path="),
    "another module": ("__import__('safetensors').safe_open(", "__import__('safetensors.torch').torch.load_file("),
    "other values": ("safe_open(", CHANGED.format(f"t + ({IS_OURS})")),
    "another dtype": ("safe_open(", CHANGED.format(f"t.double() if {IS_OURS} else t")),
}


@pytest.fixture(autouse=True)
def _tried_anew(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("private")))
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("accelerate_futures") / "model")


def change(monkeypatch, name):
    """Let accelerate read files in another way."""
    source, theirs = inspect.getsource(modeling.load_state_dict), (modeling.safe_open, modeling.safe_load_file)
    for reader, replacement in zip(READERS, FUTURES[name], strict=True):
        assert reader in source
        source = source.replace(reader, replacement)
    monkeypatch.setattr(modeling, "load_state_dict", modeling.load_state_dict)  # to be undone
    exec(source, vars(modeling))
    for reader, new_name, function in zip(
        ("safe_open", "safe_load_file"), ("file_of", "file_from"), theirs, strict=True
    ):
        if name == "no such name":
            monkeypatch.setattr(modeling, new_name, function, raising=False)
            monkeypatch.delattr(modeling, reader)
        if name == "another signature":
            monkeypatch.setattr(modeling, reader, partial(with_keyword, function))


def with_keyword(function, *, path, **how):
    return function(path, **how)


@pytest.mark.parametrize("device_map", [{"": "cpu"}, None], ids=str)
@pytest.mark.parametrize("name", FUTURES)
def test_a_model_from_s3_is_filled_as_from_the_folder(folder, s3_server, monkeypatch, caplog, name, device_map):
    url = s3_server.upload_folder(folder, "private", "accelerate/futures")
    change(monkeypatch, name)
    with init_empty_weights(include_buffers=False):
        ours = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    if device_map is None:
        ours = ours.to_empty(device="cpu")
    streamer.accelerate.load_checkpoint_in_model(
        ours, url, device_map=device_map, storage_options=s3_server.storage_options()
    )
    expected = LlamaForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, expected[each]) for each, tensor in ours.state_dict().items())
    (line,) = [each for each in caplog.messages if "does not fit" in each]
    assert line.startswith("accelerate.utils.modeling.safe_open of accelerate")
    assert not list(Path(tempfile.gettempdir()).iterdir())
