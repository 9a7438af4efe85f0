"""Versions of diffusers and transformers that do not exist: every pipeline is still loaded, and equal."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("diffusers")  # needs Python 3.11

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DDPMPipeline, DiffusionPipeline, UNet2DModel
from future_hosts import future
from tiny_pipelines import assert_same_pipeline, make_pipeline

import streamer
from streamer.compat import hooks
from streamer.integrations.transformers import hooks as transformers_hooks

pytestmark = pytest.mark.server

CALL = r"(?<![.\w])load_state_dict\((resolved_model_file\[0\]|shard_file), "
IS_OURS = "load_state_dict.__module__.startswith('streamer.')"
PAST_IT = r"__import__('safetensors.torch').torch.load_file(\1) or dict("
KEYWORD = r"(lambda *, path, **how: load_state_dict(path, **how))(path=None if " + IS_OURS + r" else \1, "
OTHERS = r"(lambda *a, **k: {n: t + " + IS_OURS + r" for n, t in load_state_dict(*a, **k).items()})(\1, "
FUTURES = {
    name: dict.fromkeys(("models/modeling_utils.py", "models/model_loading_utils.py"), (CALL, change))
    for name, change in (("past the name", PAST_IT), ("another signature", KEYWORD), ("other values", OTHERS))
}


@pytest.fixture(autouse=True)
def _tried_anew(monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(hooks, "_REASONS", {})
    hooks._log_misfit.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("future_pipelines")
    make_pipeline(root).save_pretrained(root / "pipeline", max_shard_size="70KB")
    torch.manual_seed(0)
    size = {"block_out_channels": (32, 32), "sample_size": 8, "layers_per_block": 1}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    DDPMPipeline(UNet2DModel(**size, **blocks), DDIMScheduler()).save_pretrained(root / "plain")
    return root


@pytest.fixture(scope="module")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", "diffusers/futures")


@pytest.mark.parametrize("name", FUTURES)
def test_a_model_from_s3_equals_the_folder_s(folder, url, s3_server, tmp_path, monkeypatch, caplog, name):
    path = future("diffusers", tmp_path, FUTURES[name], name=f"maker{list(FUTURES).index(name)}.diffusers")
    monkeypatch.syspath_prepend(path)
    cls = importlib.import_module(f"maker{list(FUTURES).index(name)}.diffusers").AutoencoderKL
    ours = streamer.diffusers.from_pretrained(
        cls, f"{url}/pipeline", subfolder="vae", storage_options=s3_server.storage_options()
    )
    assert type(ours) is cls
    expected = AutoencoderKL.from_pretrained(folder / "pipeline", subfolder="vae").state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[each]) for each, tensor in ours.state_dict().items())
    (line,) = [each for each in caplog.messages if "does not fit" in each]
    assert ".diffusers.models.modeling_utils.load_state_dict of maker" in line
    assert not list(Path(tempfile.gettempdir()).rglob("*.safetensors"))  # what was written is removed


def test_an_unfit_transformers_concerns_only_what_it_reads(folder, url, s3_server, caplog):
    hook = transformers_hooks.weights_hook("transformers")
    hooks._REASONS[hook] = "two small tensors did not come out of it as they went in"
    options = s3_server.storage_options()
    plain = streamer.diffusers.from_pretrained(DDPMPipeline, f"{url}/plain", storage_options=options)
    expected = DDPMPipeline.from_pretrained(folder / "plain").unet.state_dict()
    assert all(torch.equal(tensor, expected[each]) for each, tensor in plain.unet.state_dict().items())
    assert not caplog.messages
    ours = streamer.diffusers.from_pretrained(DiffusionPipeline, f"{url}/pipeline", storage_options=options)
    assert_same_pipeline(ours, DiffusionPipeline.from_pretrained(folder / "pipeline"))
    assert len([each for each in caplog.messages if hook.label in each]) == 1
