"""What ``streamer.diffusers`` says of folders that hold no pipeline, and of what it does not read."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile

import pytest

pytest.importorskip("diffusers")  # needs Python 3.11

import torch
from diffusers import DDIMScheduler, DiffusionPipeline, ParallelConfig, TensorParallelConfig, UNet2DConditionModel
from tiny_pipelines import make_pipeline
from transformers import CLIPTextModel

import streamer


@pytest.fixture(autouse=True)
def _no_private_folder_is_left(tmp_path_factory, monkeypatch):
    private = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    yield
    gc.collect()
    assert not list(private.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    make_pipeline(root).save_pretrained(root / "pipeline", max_shard_size="1MB")
    return root / "pipeline"


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "pipeline")
    return tmp_path / "pipeline"


def load(folder, cls=DiffusionPipeline, **named):
    return streamer.diffusers.from_pretrained(cls, folder, **named)


def rewrite_index(folder, **components):
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **components}))


@pytest.mark.parametrize("cls", [DiffusionPipeline, UNet2DConditionModel, DDIMScheduler])
def test_a_missing_folder_is_named(tmp_path, cls):
    with pytest.raises(streamer.ObjectNotFoundError, match="there is no such folder, or it is empty"):
        load(tmp_path / "none", cls)


def test_a_folder_without_a_pipeline_is_an_error(folder):
    with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no model_index\.json, but config\.json.*subfolder="):
        load(folder / "unet")


@pytest.mark.parametrize("cls", [UNet2DConditionModel, DDIMScheduler])
def test_a_pipeline_in_place_of_a_component_is_an_error(folder, cls):
    with pytest.raises(streamer.ObjectNotFoundError, match=r"config\.json, but model_index\.json"):
        load(folder, cls)


@pytest.mark.parametrize("name", ["vae", "tokenizer", "scheduler"])
def test_a_component_that_is_missing(folder, name):
    shutil.rmtree(folder / name)
    with pytest.raises(streamer.ObjectNotFoundError, match=rf"names the component '{name}'.*or pass {name}= yourself"):
        load(folder)


@pytest.mark.parametrize(("name", "stem"), [("vae", "diffusion_pytorch_model"), ("text_encoder", "pytorch_model")])
def test_a_component_of_pickles(folder, name, stem):
    for path in (folder / name).glob("*.safetensors*"):
        path.unlink()
    torch.save({"a": torch.ones(1)}, folder / name / f"{stem}.bin")
    with pytest.raises(streamer.ObjectNotFoundError, match=rf"{stem}\.bin has another format: convert it"):
        load(folder)


def test_a_component_without_weights(folder):
    for path in (folder / "unet").glob("*.safetensors*"):
        path.unlink()
    for uri, cls in ((folder, DiffusionPipeline), (folder / "unet", UNet2DConditionModel)):
        with pytest.raises(streamer.ObjectNotFoundError, match=r"holds no \*\.safetensors file, but config\.json"):
            load(uri, cls)


def test_weights_of_another_name(folder):
    for path in (folder / "vae").glob("*.safetensors*"):
        path.rename(path.with_name(path.name.replace("diffusion_pytorch_model", "weights")))
    with pytest.raises(
        streamer.ObjectNotFoundError, match=r"no diffusion_pytorch_model\.safetensors, but.*from_single_file"
    ):
        load(folder)


def test_an_index_that_names_an_absent_shard(folder):
    next((folder / "unet").glob("*-00002-of-*.safetensors")).unlink()
    for how in ({}, {"cls": UNet2DConditionModel, "subfolder": "unet"}):
        with pytest.raises(streamer.ObjectNotFoundError, match=r"names shard 'diffusion_pytorch_model-00002-of"):
            load(folder, **how)


def test_the_index_of_a_variant_that_names_an_absent_shard(folder):
    UNet2DConditionModel.from_pretrained(folder / "unet").save_pretrained(
        folder / "unet", variant="fp16", max_shard_size="1MB"
    )
    next((folder / "unet").glob("*.fp16-00002-of-*.safetensors")).unlink()
    with pytest.raises(streamer.ObjectNotFoundError, match=r"index\.fp16\.json names shard 'diffusion.*-00002-of"):
        load(folder, variant="fp16")


@pytest.mark.parametrize("size", ["1MB", "1GB"])
def test_weights_of_a_variant_alone_are_named_regression(folder, size):
    shutil.rmtree(folder / "unet")
    unet = make_pipeline(folder.parent).unet
    unet.save_pretrained(folder / "unet", variant="fp16", max_shard_size=size)
    with pytest.raises(streamer.ObjectNotFoundError, match=r"Pass variant='fp16' for the weights that are there"):
        load(folder, UNet2DConditionModel, subfolder="unet")
    load(folder, UNet2DConditionModel, subfolder="unet", variant="fp16")


def test_an_absent_variant_is_an_error(folder):
    with pytest.raises(streamer.ObjectNotFoundError, match=r"no diffusion_pytorch_model\.fp16\.safetensors, but"):
        load(folder, UNet2DConditionModel, subfolder="unet", variant="fp16")


def test_a_shard_that_was_cut(folder):
    shard = next((folder / "unet").glob("*-00002-of-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(streamer.TruncatedError):
        load(folder)


@pytest.mark.parametrize("name", ["../vae", "a/b", "/etc", "..", "va e", "a\\b", ""])
def test_a_component_whose_name_leaves_the_folder(folder, name):
    rewrite_index(folder, **{name: ["diffusers", "AutoencoderKL"]})
    with pytest.raises(streamer.FormatError, match="is no name of a component"):
        load(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"vae": 1, "vae": 2}'])
def test_a_malformed_index_is_an_error(folder, text):
    (folder / "model_index.json").write_text(text)
    with pytest.raises(streamer.FormatError, match="Save the pipeline again"):
        load(folder)


def test_a_class_of_another_library(folder):
    with pytest.raises(streamer.OptionError, match=r"streamer\.transformers\.from_pretrained"):
        load(folder, CLIPTextModel, subfolder="text_encoder")


SLICES = TensorParallelConfig(tp_degree=2)


@pytest.mark.parametrize(
    "asked",
    [
        {"use_safetensors": False},
        {"use_onnx": True},
        {"use_flashpack": True},
        {"parallel_config": SLICES},
        {"parallel_config": ParallelConfig(tensor_parallel_config=SLICES)},
    ],
    ids=range(5),
)
def test_what_is_not_read_from_a_url(folder, asked):
    with pytest.raises(streamer.OptionError, match="Download the folder"):
        load(folder, **asked)
