"""A device that torch cannot use is refused in one line, with what was probably meant."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from each_row import each_row
from safetensors.torch import save_file

import streamer
from streamer import _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.errors import OptionError
from streamer.core.tensors.devices import Placement
from streamer.core.tensors.torch_copies import TorchCuda

KINDS = "Give 'cpu', 'cuda', 'cuda:0', a torch.device, or a mapping of names to these"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file({"a": torch.zeros(2)}, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (None, f"device cannot be None. {KINDS}"),
        (True, f"device cannot be True. {KINDS}"),
        (1.5, f"device cannot be 1.5. {KINDS}"),
        ([0], f"device cannot be a list. {KINDS}"),
        ({"": None}, f"device cannot be None. {KINDS}"),
        ("", f"torch knows no device ''. {KINDS}"),
        ("gpu", "torch knows no device 'gpu'. Did you mean 'cuda'? One of several is cuda:0"),
        ("GPU:1", "torch knows no device 'GPU:1'. Did you mean 'cuda'? One of several is cuda:0"),
        ("cuda0", "torch knows no device 'cuda0'. Did you mean 'cuda'? One of several is cuda:0"),
        ("cdu", "torch knows no device 'cdu'. Did you mean 'cpu'?"),
        (
            "auto",
            "torch knows no device 'auto'. That is a word of accelerate's device_map: give a device, or a mapping",
        ),
    ],
)
def test_the_error_for_a_wrong_device_lists_devices(file: Path, device: Any, said: str) -> None:
    with pytest.raises(streamer.UnknownDeviceError) as caught:
        streamer.load(file, device=device)
    assert str(caught.value).startswith(said)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="torch has mps here")
@pytest.mark.parametrize("device", ["mps", torch.device("mps")])
def test_a_device_that_torch_lacks_is_no_list_of_those_it_has(file: Path, device: Any) -> None:
    with pytest.raises(streamer.UnknownDeviceError) as caught:
        streamer.load(file, device=device)
    assert str(caught.value) == (
        f"torch cannot use device 'mps': torch {torch.__version__} has no mps on this machine. "
        "Give device='cpu', or another that torch has here"
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch was built for CUDA")
def test_the_error_says_that_torch_is_built_without_cuda(file: Path) -> None:
    with pytest.raises(streamer.UnknownDeviceError, match="Torch not compiled with CUDA enabled") as caught:
        streamer.load(file, device="cuda")
    assert "\n" not in str(caught.value)
    assert str(caught.value.hint) == "Give device='cpu', or install a torch that was built for CUDA"


def test_numpy_has_the_cpu_alone(file: Path) -> None:
    with pytest.raises(streamer.UnknownDeviceError, match="live on the cpu, not on 'cuda'"):
        streamer.load(file, device="cuda", framework="np")


@pytest.mark.parametrize(
    ("dtype", "meant"),
    [("bf16", "bfloat16"), ("FP16", "float16"), ("torch.BFloat16", "bfloat16"), ("float_32", "float32")],
)
def test_the_error_for_another_name_of_a_dtype_suggests_that_of_torch(file: Path, dtype: str, meant: str) -> None:
    with pytest.raises(streamer.OptionError, match=f"Did you mean '{meant}'") as caught:
        streamer.load(file, dtype=dtype)
    assert str(caught.value).startswith("dtype is one of float64, float32, float16, bfloat16 or auto, not ")
    assert streamer.load(file, dtype=meant)["a"].dtype == getattr(torch, meant)


@pytest.mark.parametrize("dtype", ["int8", torch.int8, 16, "float8_e5m2"])
def test_a_dtype_that_is_no_target_of_casts_is_refused(file: Path, dtype: Any) -> None:
    with pytest.raises(streamer.OptionError, match="Leave it out and cast afterwards"):
        streamer.load(file, dtype=dtype)


def test_a_key_of_a_mapping_with_a_typo_is_named(file: Path) -> None:
    with pytest.raises(streamer.OptionError, match=r"none for tensor 'a'\. .* Near: 'aa'"):
        streamer.load(file, device={"aa": "cpu"})


# --- which device a name goes to, and how a plan keeps devices apart: pure values -----------------------------------


@each_row(
    ("name", "device"),
    [
        ("model.layers.1.mlp.weight", 1),
        ("model.layers.1", 1),
        ("model.layers.10.mlp.weight", "cpu"),  # a prefix ends at a dot
        ("model.layers.1.mlp.bias", "cuda:7"),  # the longest key counts
        ("lm_head.weight", "cpu"),
        ("", "cpu"),
    ],
)
def test_the_longest_key_that_is_a_whole_part_of_the_name_decides(name: str, device: object) -> None:
    devices = {"": "cpu", "model.layers.1": 1, "model.layers.1.mlp.bias": "cuda:7"}
    assert Placement(devices).of(name) == device


def test_one_device_is_for_all_names() -> None:
    assert Placement("cuda").of("anything") == "cuda"
    assert Placement("cuda").devices == ["cuda"]


def test_a_name_that_no_key_matches_is_refused() -> None:
    with pytest.raises(OptionError, match="none for tensor 'head'"):
        Placement({"model": 0}).of("head")


@pytest.mark.parametrize("wrong", [{}, {1: "cpu"}])
def test_a_target_that_is_no_mapping_is_refused(wrong: dict[object, object]) -> None:
    with pytest.raises(OptionError):
        Placement(wrong)


def test_a_span_holds_items_of_one_device_only() -> None:
    items = [Item(0, 0, 10), Item(0, 10, 20, 0, 1), Item(0, 20, 30, 0, 1), Item(0, 30, 40, 0, 2), Item(0, 40, 50)]
    spans = plan_reads(items, 100).spans
    assert [tuple(spans[row : row + 5]) for row in range(0, len(spans), 5)] == [
        (0, 0, 10, 0, 1),
        (0, 10, 30, 1, 2),
        (0, 30, 40, 3, 1),
        (0, 40, 50, 4, 1),
    ]


# --- which of torch's CUDA devices the engine fills by itself. torch and the driver are stand-ins: CI has no G ---


@pytest.mark.parametrize(("version", "is_filled"), [("12.8", True), (None, False)])
def test_the_engine_fills_devices_of_nvidia_alone(version, is_filled, monkeypatch):
    """torch calls a device of ROCm cuda, too."""
    monkeypatch.setattr(_native, "cuda_open", lambda _: None)
    cuda = TorchCuda(SimpleNamespace(version=SimpleNamespace(cuda=version)))
    assert cuda.is_filled_by_engine(0) is is_filled


def test_a_device_that_the_driver_refuses_is_filled_by_torch(monkeypatch):
    asked = []
    monkeypatch.setattr(_native, "cuda_open", lambda index: asked.append(index) or "no such device")
    cuda = TorchCuda(SimpleNamespace(version=SimpleNamespace(cuda="12.8")))
    assert not cuda.is_filled_by_engine(3)
    assert cuda.refusal(3) == "no such device"
    assert asked == [3]
