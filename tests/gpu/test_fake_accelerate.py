"""``device_map`` of accelerate over two fake devices: each tensor goes through the ring to its own device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from tiny_models import save_llama
from transformers import AutoConfig, LlamaForCausalLM

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from gpu.fake_moves import counted_moves, noted_streams
from streamer.compat import hooks
from streamer.integrations.accelerate import HOOK, PLACEMENT

LAYERS = 4
DEVICES = {**dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")}
DEVICES |= {f"model.layers.{i}": f"cuda:{i % 2}" for i in range(LAYERS)}


@pytest.fixture
def streams(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    assert HOOK.fits()
    assert PLACEMENT.fits()
    return noted_streams(monkeypatch)


@pytest.fixture
def moved(fake_gpu: FakeGpu, streams: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_moves(fake_gpu, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


def load(folder: Path, device_map: dict[str, Any] | None = None, **limits: Any) -> dict[str, torch.Tensor]:
    with init_empty_weights(include_buffers=False):
        model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    options = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20, **limits)
    streamer.accelerate.load_checkpoint_in_model(model, folder, device_map=device_map or DEVICES, options=options)
    return dict(model.state_dict())


def assert_placed(state: dict[str, torch.Tensor], folder: Path) -> None:
    expected = LlamaForCausalLM.from_pretrained(folder).state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name
        layer = name.partition("model.layers.")[2].partition(".")[0]
        if layer:  # what is on the CPU may have the address of what was on the fake device
            assert FakeTorchCuda.placed.get(tensor.data_ptr()) == int(layer) % 2, name


# With little memory, too: accelerate collects a shard device by device, in any order.
@pytest.mark.parametrize("limits", [{}, {"memory_limit_bytes": 64 << 10}], ids=["usual", "little memory"])
def test_each_tensor_goes_through_the_ring_to_its_own_device(
    streams: list[Any], moved: list[int], folder: Path, limits: dict[str, int]
) -> None:
    state = load(folder, **limits)
    assert_placed(state, folder)
    (stream,) = streams  # one plan of all shards
    assert stream.report.device_path == "ring"
    assert stream.report.bytes == sum(tensor.nbytes for tensor in state.values())
    assert not moved  # nothing was left for torch to copy


def test_one_device_for_all(streams: list[Any], moved: list[int], folder: Path) -> None:
    state = load(folder, {"": "cuda:1"})
    assert {FakeTorchCuda.placed.get(tensor.data_ptr()) for tensor in state.values()} == {1}
    assert [stream.report.device_path for stream in streams] == ["ring"]
    assert not moved


def test_a_changed_hook_leaves_the_copies_to_torch(
    streams: list[Any], moved: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hooks._REASONS, PLACEMENT, "its arguments have changed")
    state, expected = load(folder), LlamaForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())
    assert [stream.report.device_path for stream in streams] == [""]
    assert sum(moved) >= sum(tensor.nbytes for name, tensor in expected.items() if "layers" in name)
