"""A device that torch cannot use is refused in one line, with what was probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import streamer

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
