"""``device_map`` of transformers over two fake devices: each tensor goes through the ring to its own device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import save_llama, save_mixtral
from transformers import AutoModelForCausalLM

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from gpu.fake_moves import counted_moves, noted_streams
from streamer.integrations.transformers.hooks import placement_hook, weights_hook

SMALL = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20)
ON_CPU = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans that were read."""
    assert weights_hook("transformers").fits()
    assert placement_hook("transformers").fits()
    return noted_streams(monkeypatch)


@pytest.fixture(autouse=True)
def moved(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that torch was to copy to a device."""
    monkeypatch.setattr(transformers.modeling_utils, "caching_allocator_warmup", lambda *_: None)
    monkeypatch.setattr(transformers.modeling_utils, "accelerate_dispatch", lambda *_: None)
    return counted_moves(fake_gpu, monkeypatch)


def device_map(layers: int) -> dict[str, Any]:
    return {**ON_CPU, **{f"model.layers.{i}": f"cuda:{i % 2}" for i in range(layers)}}


def load(folder: Path, layers: int, **how: Any) -> Any:
    return streamer.transformers.from_pretrained(
        AutoModelForCausalLM, folder, options=SMALL, device_map=device_map(layers), **how
    )


def test_each_tensor_goes_through_the_ring_to_its_own_device(
    fake_gpu: FakeGpu, streams: list[Any], moved: list[int], tmp_path: Path
) -> None:
    save_llama(tmp_path)
    ours, theirs = load(tmp_path, 4), AutoModelForCausalLM.from_pretrained(tmp_path)
    expected, on_devices = theirs.state_dict(), 0
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
        layer = name.partition("model.layers.")[2].partition(".")[0]
        assert FakeTorchCuda.placed.get(tensor.data_ptr()) == (int(layer) % 2 if layer else None), name
        on_devices += tensor.nbytes if layer else 0
    (stream,) = streams  # one plan of all tensors
    assert stream.report.device_path == "ring"
    assert stream.report.bytes == sum(tensor.nbytes for tensor in expected.values())
    assert 0 < stream.report.peak_pinned_bytes <= SMALL.pinned_bytes
    assert on_devices > stream.report.bytes // 2
    assert not moved  # nothing was left for torch to copy


@pytest.mark.parametrize("how", [{}, {"dtype": torch.bfloat16}], ids=str)
def test_experts_are_fused_where_they_are(
    fake_gpu: FakeGpu, streams: list[Any], moved: list[int], tmp_path: Path, how: dict[str, Any]
) -> None:
    save_mixtral(tmp_path)
    ours, theirs = load(tmp_path, 2, **how), AutoModelForCausalLM.from_pretrained(tmp_path, **how)
    expected = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name
    assert [stream.report.device_path for stream in streams] == ["ring"]
    assert not moved


def test_a_changed_hook_leaves_the_copies_to_torch(
    fake_gpu: FakeGpu, streams: list[Any], moved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path)
    hook = placement_hook("transformers")
    monkeypatch.setitem(streamer.compat.hooks._REASONS, hook, "its arguments have changed")
    ours, theirs = load(tmp_path, 4), AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = theirs.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())
    assert [stream.report.device_path for stream in streams] == [""]
    on_devices = sum(tensor.nbytes for name, tensor in expected.items() if "layers" in name)
    assert sum(moved) == on_devices
