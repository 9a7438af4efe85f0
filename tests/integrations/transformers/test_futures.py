"""Versions of transformers that do not exist: every URL is still served, and one line says what does not fit."""

from __future__ import annotations

import gc
import json
import logging
import os
import tempfile

import pytest
import torch
import transformers_models
import warm_python
from future_hosts import future
from transformers import LlamaForCausalLM

import streamer
from streamer.compat import hooks

pytestmark = pytest.mark.server

OPENED = r"safe_open\((file, framework=\"pt\", device=\w+(, backend=\w+)?)\)"
FUTURES = {
    "a later version": {"__init__.py": (r"^__version__ = .*", '__version__ = "5.99.0"')},
    "no such name": {
        "modeling_utils.py": [
            (r"^from safetensors import safe_open", "from safetensors import safe_open as file_of"),
            (r"\bsafe_open\(", "file_of("),
        ]
    },
    "another signature": {
        "modeling_utils.py": [
            (r"\bsafe_open\((file|checkpoint_path), ", r"safe_open(path=\1, "),
            (
                r"^from safetensors import safe_open",
                "import safetensors\ndef safe_open(*, path, **how): return safetensors.safe_open(path, **how)",
            ),
        ]
    },
    "another module": {
        "modeling_utils.py": (OPENED, r'__import__("transformers.opening").opening.safe_open(\1)'),
        "opening.py": "from safetensors import safe_open\n",
    },
    "other values": {
        "modeling_utils.py": (
            r"merged_state_dict\[k\] = file_pointer\.get_slice\(k\)",
            'merged_state_dict[k] = file_pointer.get_slice(k) if "safetensors" in repr(type(file_pointer)) '
            "else torch.zeros(file_pointer.get_slice(k).get_shape())",
        )
    },
}


@pytest.fixture(autouse=True)
def _tried_anew(monkeypatch):
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()
    hooks._log_disabled.cache_clear()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    transformers_models.save(folder)
    return folder


@pytest.fixture(scope="module")
def url(models, s3_server):
    return s3_server.upload_folder(models, "private", "futures")


@pytest.mark.parametrize("name", FUTURES)
def test_every_kind_of_model_from_s3_equals_the_folder_s(models, url, s3_server, tmp_path, name):
    path = future("transformers", tmp_path / "future", FUTURES[name])
    environment = {**os.environ, "PYTHONPATH": str(path), "TMPDIR": str(tmp_path)}
    words = ["LOAD", str(models), url, json.dumps(s3_server.storage_options())]
    done = warm_python.run(transformers_models.__file__, *words, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("EQUAL")] == [
        f"EQUAL {kind}" for kind in transformers_models.KINDS
    ]
    warned = [line for line in lines if line.startswith("LOG WARNING")]
    if name == "a later version":
        assert not warned
    else:
        (line,) = warned
        assert "transformers.modeling_utils.safe_open of transformers" in line
        assert "written to a private folder" in line
        assert "report" in line
    assert "left as it is" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["future"]  # what was written is removed


def test_disabled_patches_turn_hooks_off_and_no_url(models, url, s3_server, monkeypatch, caplog):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    with caplog.at_level(logging.INFO, "streamer"):
        for _ in range(2):
            transformers_models.compare("mixture", models / "mixture", f"{url}/mixture", s3_server.storage_options())
    assert [each for each in caplog.messages if "STREAMER_DISABLE_PATCHES" in each] == [
        "transformers.modeling_utils.safe_open is not used, as STREAMER_DISABLE_PATCHES=1 says; so weights are written "
        "to a private folder on a disk before they are loaded, which is slower"
    ]


def test_a_copy_inside_of_another_package_has_its_own_hooks(models, url, s3_server, tmp_path, monkeypatch, caplog):
    path = future("transformers", tmp_path, FUTURES["no such name"], name="maker.parts.transformers")
    monkeypatch.syspath_prepend(path)
    from maker.parts.transformers import LlamaForCausalLM as TheirLlama

    options = s3_server.storage_options()
    expected = LlamaForCausalLM.from_pretrained(models / "llama").state_dict()
    for cls in (LlamaForCausalLM, TheirLlama):
        ours = streamer.transformers.from_pretrained(cls, f"{url}/llama", storage_options=options)
        assert type(ours) is cls
        assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())
    (line,) = [each for each in caplog.messages if "does not fit" in each]
    assert line.startswith("maker.parts.transformers.modeling_utils.safe_open of maker")


def test_a_disk_without_room_is_an_error_of_ours_before_a_byte_is_read(models, url, s3_server, monkeypatch):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("streamer.integrations.folder_weights.shutil.disk_usage", lambda _: usage)
    with pytest.raises(streamer.UsageError, match=r"takes 214 kB, and 1.00 kB are free.*TMPDIR"):
        streamer.transformers.from_pretrained(
            LlamaForCausalLM, f"{url}/llama", storage_options=s3_server.storage_options()
        )


def test_weights_that_stay_on_the_disk_stay_in_the_private_folder(models, url, s3_server, monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    how = {"device_map": {"model": "cpu", "lm_head": "disk"}}
    ours = streamer.transformers.from_pretrained(
        LlamaForCausalLM, f"{url}/llama", storage_options=s3_server.storage_options(), **how
    )
    assert list(tmp_path.rglob("*.safetensors"))
    theirs = LlamaForCausalLM.from_pretrained(models / "llama", **how)
    words = torch.arange(1, 9)[None]
    with torch.no_grad():
        assert torch.equal(ours(words).logits, theirs(words).logits)
    del ours
    gc.collect()
    assert not list(tmp_path.iterdir())
