"""``from_pretrained`` of the real diffusers, from a real S3 server and from a disk: what the original gives."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("diffusers")  # needs Python 3.11

import safetensors
import torch
import transformers
from diffusers import (
    AutoencoderKL,
    AutoModel,
    AutoPipelineForText2Image,
    DDIMScheduler,
    DiffusionPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from diffusers.loaders import single_file_utils
from diffusers.models import model_loading_utils, modeling_utils
from tiny_pipelines import MODELS, assert_same_pipeline, assert_same_weights, make_pipeline, make_unet

import streamer
from streamer.integrations import read_ahead, shard_handles
from streamer.integrations.diffusers.hooks import file_hook, weights_hook
from streamer.integrations.diffusers.pipeline_folder import PipelineFolder
from streamer.integrations.library_calls import Location
from streamer.integrations.transformers import hooks as transformers_hooks

pytestmark = pytest.mark.server
THEIRS = model_loading_utils.load_state_dict


@pytest.fixture(scope="session", params=["single", "sharded"])
def folder(request, tmp_path_factory):
    """A pipeline whose models are in one file each, or in several."""
    root = tmp_path_factory.mktemp(request.param)
    make_pipeline(root).save_pretrained(
        root / "pipeline", max_shard_size="70KB" if request.param == "sharded" else "1GB"
    )
    for name in MODELS:
        assert len(list((root / "pipeline" / name).glob("*.safetensors"))) > 1 or request.param == "single"
    return root / "pipeline"


@pytest.fixture(scope="session")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", f"diffusers/{folder.parent.name}")


@pytest.fixture
def s3(s3_server):
    return {"storage_options": s3_server.storage_options()}


@pytest.fixture(autouse=True)
def private(tmp_path_factory, monkeypatch):
    """Where private folders are made; afterwards none is left, and all names are theirs again."""
    folder = tmp_path_factory.mktemp("private")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert not list(folder.iterdir())
    assert {module.load_state_dict for module in (model_loading_utils, modeling_utils, single_file_utils)} == {THEIRS}
    assert transformers.modeling_utils.safe_open is safetensors.safe_open


@pytest.fixture
def streams(monkeypatch):
    """The plans that were read."""
    hooks = (file_hook("diffusers"), weights_hook("diffusers"), transformers_hooks.weights_hook("transformers"))
    assert all(hook.fits() for hook in hooks)  # a dry run reads, too
    made = []

    def noted(*arguments, **named):
        made.append(streamer.Stream(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return made


def load(*arguments, **named):
    return streamer.diffusers.from_pretrained(*arguments, **named)


@pytest.mark.parametrize("cls", [DiffusionPipeline, StableDiffusionPipeline, AutoPipelineForText2Image])
def test_a_pipeline_from_s3_equals_the_original_from_a_disk(url, folder, s3, streams, private, cls):
    ours, theirs = load(cls, url, **s3), cls.from_pretrained(folder)
    assert_same_pipeline(ours, theirs)
    # Each model is one read of all its tensors.
    expected = sorted(len(getattr(theirs, name).state_dict()) for name in MODELS)
    assert sorted(len(stream.names) for stream in streams) == expected
    assert sum(path.stat().st_size for path in private.rglob("*.safetensors")) == 0


def test_one_plan_makes_no_more_requests_than_a_load_of_the_same_bytes(url, s3, streams):
    load(UNet2DConditionModel, f"{url}/unet", **s3)
    with streamer.stream(f"{url}/unet", **s3) as everything:
        assert len(dict(everything)) == len(streams[0].names)
    assert len(streams) == 1
    assert streams[0].report.requests <= everything.report.requests


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": torch.float16},
        {"dtype": {"unet": torch.bfloat16, "default": torch.float16}},
        {"low_cpu_mem_usage": False},
        {"disable_mmap": True},
    ],
    ids=str,
)
def test_a_pipeline_is_loaded_with_its_arguments(url, folder, s3, how):
    ours = load(DiffusionPipeline, url, **how, **s3)
    how.pop("disable_mmap", None)  # with which diffusers leaves its files open
    theirs = DiffusionPipeline.from_pretrained(folder, **how)
    for name in MODELS:
        assert_same_weights(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize(
    "how",
    [{}, {"device_map": "cpu"}, {"device_map": "auto"}, {"dtype": torch.float16}],
    ids=str,
)
@pytest.mark.parametrize("cls", [UNet2DConditionModel, AutoModel])
def test_one_component_is_loaded_by_its_class(url, folder, s3, streams, cls, how):
    ours = load(cls, url, subfolder="unet", **how, **s3)
    theirs = UNet2DConditionModel.from_pretrained(folder, subfolder="unet", **how)
    assert_same_weights(ours, theirs)
    assert ours.config["_name_or_path"] == f"{url}/unet"
    assert len(streams) == 1


def test_the_loading_info_equals_that_of_the_original(url, folder, s3):
    _, ours = load(UNet2DConditionModel, f"{url}/unet", output_loading_info=True, **s3)
    _, theirs = UNet2DConditionModel.from_pretrained(folder / "unet", output_loading_info=True)
    assert ours == theirs


def test_a_text_encoder_is_loaded_by_auto_model(url, folder, s3):
    ours = load(AutoModel, url, subfolder="text_encoder", **s3)
    assert_same_weights(ours, AutoModel.from_pretrained(str(folder), subfolder="text_encoder"))
    assert ours.name_or_path == f"{url}/text_encoder"


def test_what_a_text_encoder_leaves_on_disk_is_read_from_the_url_while_it_is_used(url, folder, s3):
    how = {"subfolder": "text_encoder", "device_map": {"": "disk"}}
    ours, theirs = load(AutoModel, url, **how, **s3), AutoModel.from_pretrained(str(folder), **how)
    with torch.no_grad():
        found, expected = (each(torch.tensor([[0, 3, 1]])).last_hidden_state for each in (ours, theirs))
    assert torch.equal(found, expected)


def test_a_scheduler_is_loaded_without_weights(url, s3, streams):
    scheduler = load(DDIMScheduler, url, subfolder="scheduler", **s3)
    assert scheduler.config.steps_offset == 1
    assert not streams


def test_weights_go_to_an_offload_folder_and_nowhere_else(url, folder, s3, streams, private, tmp_path):
    names = [name for name, _ in make_unet().named_children() if name not in ("mid_block", "up_blocks")]
    how = {"device_map": {**dict.fromkeys(names, "cpu"), "mid_block": "disk", "up_blocks": "disk"}}
    how["offload_state_dict"] = False
    ours = load(UNet2DConditionModel, f"{url}/unet", offload_folder=tmp_path / "ours", **how, **s3)
    theirs = UNet2DConditionModel.from_pretrained(folder / "unet", offload_folder=tmp_path / "theirs", **how)
    written = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    assert len(written) > 10
    noise, words = torch.ones(1, 4, 8, 8), torch.ones(1, 3, 32)
    with torch.no_grad():
        assert torch.allclose(ours(noise, 1, words).sample, theirs(noise, 1, words).sample, atol=1e-5)
    assert len(streams) == 1
    assert sum(path.stat().st_size for path in private.rglob("*.safetensors")) == 0


@pytest.mark.parametrize("size", ["70KB", "1GB"])
def test_a_variant_is_chosen_for_the_components_that_have_it(tmp_path, folder, size):
    shutil.copytree(folder, tmp_path / "pipeline")
    other = make_pipeline(tmp_path)
    with torch.no_grad():
        for name in MODELS:
            next(getattr(other, name).parameters()).add_(1)
    other.save_pretrained(tmp_path / "pipeline", variant="fp16", max_shard_size=size)
    for path in (tmp_path / "pipeline/vae").glob("*fp16*"):
        path.unlink()
    ours = load(DiffusionPipeline, tmp_path / "pipeline", variant="fp16")
    theirs = DiffusionPipeline.from_pretrained(tmp_path / "pipeline", variant="fp16")
    assert_same_pipeline(ours, theirs)
    assert_same_weights(ours.unet, other.unet)
    unet = load(UNet2DConditionModel, tmp_path / "pipeline", subfolder="unet", variant="fp16")
    assert_same_weights(unet, other.unet)


@pytest.mark.parametrize(("cached", "plans"), [(1.0, 0), (0.5, len(MODELS))])
def test_local_files_in_the_page_cache_are_mapped(folder, streams, monkeypatch, cached, plans):
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: cached)
    assert_same_pipeline(load(DiffusionPipeline, folder), DiffusionPipeline.from_pretrained(folder))
    assert len(streams) == plans


def test_little_memory_changes_nothing(url, folder, s3):
    ours = load(DiffusionPipeline, url, options=streamer.Options(memory_limit_bytes=1), **s3)
    assert_same_pipeline(ours, DiffusionPipeline.from_pretrained(folder))


def test_shards_are_loaded_in_parallel_where_diffusers_does_so(url, folder, s3, monkeypatch):
    monkeypatch.setattr(modeling_utils, "HF_ENABLE_PARALLEL_LOADING", True)
    assert_same_pipeline(load(DiffusionPipeline, url, **s3), DiffusionPipeline.from_pretrained(folder))


def test_passed_components_are_not_read(folder, tmp_path, streams, monkeypatch):
    monkeypatch.setattr(shard_handles, "cached_fraction", lambda *_: 0.0)
    shutil.copytree(folder, tmp_path / "pipeline")
    shutil.rmtree(tmp_path / "pipeline/vae")
    shutil.rmtree(tmp_path / "pipeline/unet")
    index = json.loads((tmp_path / "pipeline/model_index.json").read_text())
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    (tmp_path / "pipeline/model_index.json").write_text(json.dumps(index))
    unet = make_unet()
    ours = load(DiffusionPipeline, tmp_path / "pipeline", unet=unet, vae=None, safety_checker=None)
    assert ours.unet is unet
    assert ours.vae is ours.safety_checker is None
    assert len(streams) == 1


def test_the_names_are_the_url_without_secrets(url, s3):
    pipeline = load(DiffusionPipeline, url, **s3)
    assert pipeline.name_or_path == url
    assert pipeline.vae.config["_name_or_path"] == f"{url}/vae"
    assert pipeline.text_encoder.name_or_path == pipeline.text_encoder.config.name_or_path == f"{url}/text_encoder"


def test_the_private_folder_goes_with_the_last_component(folder, private, tmp_path):
    pipeline = load(DiffusionPipeline, folder)
    assert len(list(private.iterdir())) == 1
    tokenizer = pipeline.tokenizer
    pipeline.save_pretrained(tmp_path / "saved")
    del pipeline
    gc.collect()
    assert len(list(private.iterdir())) == 1
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    del tokenizer
    gc.collect()
    assert not list(private.iterdir())
    assert_same_pipeline(
        DiffusionPipeline.from_pretrained(tmp_path / "saved"), DiffusionPipeline.from_pretrained(folder)
    )


def test_code_is_pulled_only_with_trust_remote_code(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "pipeline")
    for path in ("pipeline.py", "unet/code.py"):
        (tmp_path / "pipeline" / path).write_text("raise SystemExit")
    location = Location(uri=str(tmp_path / "pipeline"))
    for takes_code in (False, True):
        with closing(PipelineFolder(location, takes_code=takes_code)) as pulled:
            names = {path.name for path in Path(pulled.path).rglob("*.py")}
        assert names == ({"pipeline.py", "code.py"} if takes_code else set())


def test_disabled_patches_turn_the_hook_off(monkeypatch, folder, streams):
    monkeypatch.setenv("STREAMER_DISABLE_PATCHES", "1")
    ours = load(AutoencoderKL, folder, subfolder="vae")
    theirs = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())
    assert not streams  # files of this machine are read by diffusers itself
