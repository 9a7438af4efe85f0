"""``device_map`` of diffusers over two fake devices: what it states is read through the ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")  # needs Python 3.11

import json

import torch
import transformers
from diffusers import AutoencoderKL, DiffusionPipeline
from diffusers.models import modeling_utils
from tiny_pipelines import make_pipeline

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from gpu.fake_moves import counted_moves, noted_streams
from streamer.integrations.diffusers.hooks import weights_hook
from streamer.integrations.transformers.hooks import placement_hook
from streamer.integrations.transformers.hooks import weights_hook as hook_of_transformers

SMALL = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20)


@pytest.fixture
def streams(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    assert weights_hook("diffusers").fits()
    assert hook_of_transformers("transformers").fits()
    assert placement_hook("transformers").fits()
    return noted_streams(monkeypatch)


@pytest.fixture
def moved(fake_gpu: FakeGpu, streams: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    for module, name in ((modeling_utils, "_caching_allocator_warmup"), (modeling_utils, "dispatch_model")):
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    monkeypatch.setattr(transformers.modeling_utils, "caching_allocator_warmup", lambda *_: None)
    monkeypatch.setattr(transformers.modeling_utils, "accelerate_dispatch", lambda *_: None)
    return counted_moves(fake_gpu, monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("placed_pipeline")
    make_pipeline(root).save_pretrained(root / "pipeline", max_shard_size="70KB")
    return root / "pipeline"


def load(folder: Path, device_map: Any, **how: Any) -> dict[str, torch.Tensor]:
    ours = streamer.diffusers.from_pretrained(AutoencoderKL, folder, device_map=device_map, options=SMALL, **how)
    return dict(ours.state_dict())


@pytest.mark.parametrize("how", [{}, {"torch_dtype": torch.bfloat16}], ids=str)
@pytest.mark.parametrize("device_map", ["cuda:1", {"": "cuda:1", "encoder": "cuda:0", "quant_conv": "cpu"}], ids=str)
def test_a_model_goes_through_the_ring_to_the_devices_that_are_stated(
    streams: list[Any], moved: list[int], folder: Path, device_map: Any, how: dict[str, Any]
) -> None:
    expected = AutoencoderKL.from_pretrained(folder / "vae", **how).state_dict()
    state = load(folder / "vae", device_map, **how)
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name
        stated = 1 if device_map == "cuda:1" else {"encoder": 0, "quant_conv": None}.get(name.partition(".")[0], 1)
        if stated is not None:  # what is on the CPU may have the address of what was on the fake device
            assert FakeTorchCuda.placed.get(tensor.data_ptr()) == stated, name
    assert [stream.report.device_path for stream in streams] == ["ring"]
    assert not moved  # nothing was left for torch to copy


def test_a_pipeline_on_one_device(
    streams: list[Any], moved: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers.pipelines.pipeline_utils.SUPPORTED_DEVICE_MAP", ["cuda:0"])
    empty_like = torch.empty_like  # of buffers that no file has
    monkeypatch.setattr(torch, "empty_like", lambda tensor, device=None: empty_like(tensor, device="cpu"))
    expected = DiffusionPipeline.from_pretrained(folder)
    ours = streamer.diffusers.from_pretrained(DiffusionPipeline, folder, device_map="cuda:0", options=SMALL)
    for part in ("unet", "vae", "text_encoder"):
        theirs = getattr(expected, part).state_dict()
        for name, tensor in getattr(ours, part).state_dict().items():
            assert torch.equal(tensor, theirs[name]), name
    assert len(streams) == 3
    assert {stream.report.device_path for stream in streams} == {"ring"}
    assert not moved


@pytest.mark.parametrize("where", ["config", "argument"])
def test_a_quantised_model_is_read_to_this_machine_s_memory(
    streams: list[Any], folder: Path, tmp_path: Path, where: str
) -> None:
    from streamer.integrations.diffusers.hooks import is_placed_by, placed_models
    from streamer.integrations.library_calls import Location
    from streamer.integrations.model_folder import ModelFolder
    from streamer.integrations.naming import DIFFUSERS

    config = json.loads((folder / "vae/config.json").read_text())
    for path in (folder / "vae").iterdir():
        (tmp_path / path.name).symlink_to(path)
    kwargs: dict[str, Any] = {"device_map": "cuda:0"}
    if where == "argument":
        kwargs["quantization_config"] = object()
        assert not is_placed_by(kwargs)
    else:
        (tmp_path / "config.json").unlink()
        (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gguf"}}))
    model = ModelFolder(Location(uri=tmp_path, options=SMALL), naming=DIFFUSERS)
    with placed_models([model], kwargs):
        for shard in model.shards:
            assert model.loaded(str(Path(model.path, shard)))
    model.close()
    assert [stream.report.device_path for stream in streams] == [""]
