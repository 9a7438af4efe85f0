"""Tensors come where the caller says, whatever device torch makes others on at that time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer.core.tensors import target_states

WEIGHTS = {"weight": torch.arange(12.0).reshape(3, 4), "empty": torch.empty(0, 4)}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 4))
        self.empty = torch.nn.Parameter(torch.zeros(0, 4))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_is_known_of_torch_yet() -> Iterator[None]:
    target_states._flag_offset.cache_clear()
    yield
    target_states._flag_offset.cache_clear()


def assert_right(tensors: dict[str, torch.Tensor]) -> None:
    assert {name: tensor.device.type for name, tensor in tensors.items()} == {"weight": "cpu", "empty": "cpu"}
    assert all(torch.equal(tensors[name].float(), expected) for name, expected in WEIGHTS.items())


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_loaded_and_streamed_tensors_are_on_the_requested_device(model: Path, dtype: str | None) -> None:
    with torch.device("meta"):
        loaded, streamed = streamer.load(model, dtype=dtype), dict(streamer.stream(model, dtype=dtype))
    assert_right(loaded)
    assert_right(streamed)


def test_slices_are_on_the_default_device(model: Path) -> None:
    with torch.device("meta"), streamer.open(model) as checkpoint:
        slices = checkpoint["weight"][1:1], checkpoint["weight"][:, :2], checkpoint["empty"][...]
    assert [each.device.type for each in slices] == ["cpu"] * 3


def test_targets_are_filled_where_they_are(model: Path) -> None:
    targets = {name: torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}
    with torch.device("meta"):
        streamer.load_into(model, targets)
    assert_right(targets)


def test_no_parameter_of_a_module_stays_on_meta(model: Path) -> None:
    with torch.device("meta"):
        module = Model()
        streamer.load_into(model, module, device="cpu")
    assert_right({name: tensor.detach() for name, tensor in module.state_dict().items()})
