"""``from_single_file`` of the real diffusers, and adapters of pipelines, from a real S3 server."""

from __future__ import annotations

import asyncio
import gc
import tempfile

import pytest

pytest.importorskip("diffusers")  # needs Python 3.11

import torch
from diffusers import AutoencoderKL, DiffusionPipeline, StableDiffusionPipeline
from diffusers.loaders import lora_base
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from tiny_pipelines import assert_same_pipeline, assert_same_weights, make_pipeline, picture

import streamer
from streamer.integrations import read_ahead
from streamer.integrations.diffusers.hooks import file_hook

pytestmark = pytest.mark.server
LORA_NOTES = {"lora_adapter_metadata": '{"unet.lora_alpha": 1}'}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("single_files")
    make_pipeline(root).save_pretrained(root / "pipeline")
    return root / "pipeline"


@pytest.fixture(scope="module")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", "diffusers/single_files")


@pytest.fixture
def s3(s3_server):
    return {"storage_options": s3_server.storage_options()}


@pytest.fixture(autouse=True)
def private(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert not list(folder.iterdir())


@pytest.fixture
def streams(monkeypatch):
    """The numbers of tensors of the plans that were read."""
    assert file_hook("diffusers").fits()  # a dry run reads, too
    counts = []

    def noted(checkpoint, wanted, *others, **named):
        counts.append(len(wanted))
        return streamer.Stream(checkpoint, wanted, *others, **named)

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return counts


def vae_file(folder):
    return f"{folder}/vae/diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize("how", [{}, {"dtype": torch.float16}, {"disable_mmap": True}], ids=str)
def test_a_model_is_loaded_from_one_file(url, folder, s3, streams, how):
    ours = streamer.diffusers.from_single_file(AutoencoderKL, vae_file(url), config=f"{url}/vae", **how, **s3)
    how.pop("disable_mmap", None)  # with which diffusers leaves its file open
    theirs = AutoencoderKL.from_single_file(vae_file(folder), config=f"{folder}/vae", **how)
    assert_same_weights(ours, theirs)
    assert streams == [len(theirs.state_dict())]


def test_the_configuration_of_a_single_file_may_be_in_a_sub_folder_or_on_a_disk(url, folder, s3):
    theirs = AutoencoderKL.from_single_file(vae_file(folder), config=f"{folder}/vae")
    for config, subfolder in ((url, "vae"), (str(folder), "vae"), (f"{folder}/vae", None)):
        how = {"config": config, "subfolder": subfolder}
        assert_same_weights(streamer.diffusers.from_single_file(AutoencoderKL, vae_file(url), **how, **s3), theirs)


def test_a_pipeline_is_loaded_from_one_file(url, folder, s3, streams):
    given = DiffusionPipeline.from_pretrained(folder, vae=None)
    how = {"unet": given.unet, "text_encoder": given.text_encoder}
    ours = streamer.diffusers.from_single_file(StableDiffusionPipeline, vae_file(url), config=url, **how, **s3)
    theirs = StableDiffusionPipeline.from_single_file(vae_file(folder), config=str(folder), **how)
    assert_same_pipeline(ours, theirs)
    assert streams == [len(theirs.vae.state_dict())]


def test_a_file_on_this_machine(folder):
    ours = streamer.diffusers.from_single_file(AutoencoderKL, vae_file(folder), config=f"{folder}/vae")
    assert_same_weights(ours, AutoencoderKL.from_single_file(vae_file(folder), config=f"{folder}/vae"))


@pytest.mark.parametrize("name", ["model.ckpt", "model.bin", "model.gguf", "model"])
def test_a_file_of_another_format(url, s3, name):
    with pytest.raises(streamer.OptionError, match=r"only \.safetensors files are read.*Convert it"):
        streamer.diffusers.from_single_file(AutoencoderKL, f"{url}/{name}", **s3)


def test_no_file(url, s3):
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.diffusers.from_single_file(AutoencoderKL, f"{url}/none.safetensors", config=f"{url}/vae", **s3)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.diffusers.from_single_file(AutoencoderKL, vae_file(url), config=f"{url}/none", **s3)


def test_an_adapter_is_loaded_from_its_tensors(url, folder, s3, s3_server, tmp_path):
    adapted = DiffusionPipeline.from_pretrained(folder)
    plain = picture(adapted)
    adapted.unet.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False))
    StableDiffusionPipeline.save_lora_weights(tmp_path, unet_lora_layers=get_peft_model_state_dict(adapted.unet))
    lora = s3_server.upload_folder(tmp_path, "private", "diffusers/lora")
    ours, theirs = (DiffusionPipeline.from_pretrained(folder) for _ in range(2))
    ours.load_lora_weights(streamer.load(f"{lora}/pytorch_lora_weights.safetensors", **s3))
    theirs.load_lora_weights(str(tmp_path))
    assert torch.equal(picture(ours), picture(theirs))
    assert not torch.equal(picture(ours), plain)


def _loaded_by_open(uri):
    with streamer.open(uri) as checkpoint:
        return checkpoint.get_tensors()


READERS = {
    "load": streamer.load,
    "aload": lambda uri: asyncio.run(streamer.aload(uri)),
    "load_file": streamer.load_file,
    "get_tensors": _loaded_by_open,
    "a copy": lambda uri: streamer.load(uri).copy(),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_adapter_keeps_its_strength_regression(read, folder, tmp_path):
    adapted = DiffusionPipeline.from_pretrained(folder)
    config = LoraConfig(r=4, lora_alpha=1, target_modules=["to_q", "to_v"], init_lora_weights=False)
    adapted.unet.add_adapter(config)
    StableDiffusionPipeline.save_lora_weights(
        tmp_path,
        unet_lora_layers=get_peft_model_state_dict(adapted.unet),
        unet_lora_adapter_metadata=config.to_dict(),
    )
    tensors = read(tmp_path / "pytorch_lora_weights.safetensors")
    through_pipeline, through_model = (DiffusionPipeline.from_pretrained(folder) for _ in range(2))
    through_pipeline.load_lora_weights(tensors)
    through_model.unet.load_lora_adapter(tensors, prefix="unet")
    for loaded in (through_pipeline, through_model):
        assert {value for each in loaded.unet.modules() for value in getattr(each, "scaling", {}).values()} == {0.25}


def test_an_adapter_without_patches_is_a_warning(tmp_path, monkeypatch, caplog):
    save_file({"unet.to_q.lora_A.weight": torch.zeros(2, 2)}, tmp_path / "lora.safetensors", LORA_NOTES)
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    monkeypatch.setattr(lora_base, "_fetch_state_dict", lambda tensors: (tensors, None))
    streamer.load(tmp_path / "lora.safetensors")
    assert "does not reach diffusers" in caplog.text
    monkeypatch.delenv("STREAMER_DISABLE_PATCHES")
    tensors = streamer.load(tmp_path / "lora.safetensors")
    assert lora_base._fetch_state_dict(tensors) == (tensors, {"unet.lora_alpha": 1})
    assert lora_base._fetch_state_dict(dict(tensors)) == (tensors, None)
