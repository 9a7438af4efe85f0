"""Every way a device can refuse, through the fake driver: `DeviceError`, the driver's own name, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda

SMALL = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20)


def load(checkpoint: Path, device: str = "cuda") -> dict[str, torch.Tensor]:
    return streamer.load(checkpoint, device=device, options=SMALL, progress=False)


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("cuMemcpyHtoDAsync_v2", 1, "CUDA_ERROR_INVALID_VALUE"),
        ("cuMemcpyHtoDAsync_v2", 999, "CUDA_ERROR_UNKNOWN"),
        ("cuEventQuery", 719, "CUDA_ERROR_LAUNCH_FAILED"),
        ("cuEventRecord", 400, "CUDA_ERROR_INVALID_HANDLE"),
        ("cuStreamWaitEvent", 4, "CUDA_ERROR_DEINITIALIZED"),
        ("cuStreamCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
@pytest.mark.parametrize("after", [0, 20])
def test_a_refusal_ends_the_load_with_the_drivers_name(
    fake_gpu: FakeGpu, checkpoint: Path, function: str, code: int, name: str, after: int
) -> None:
    fake_gpu.fail(function, code, 0 if function in ("cuStreamCreate", "cuStreamWaitEvent") else after)
    with pytest.raises(streamer.DeviceError, match=name) as caught:
        load(checkpoint)
    assert caught.value.code == name
    assert caught.value.hint
    assert fake_gpu.pinned_in_use() == 0


def test_a_device_lost_in_the_middle_of_a_copy_ends_the_load(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    fake_gpu.lose_device(700, 30)
    with pytest.raises(streamer.DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        load(checkpoint)


def test_host_memory_that_cannot_be_pinned_is_reported_with_its_bytes(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    fake_gpu.fail("cuMemHostRegister_v2", 2)
    fake_gpu.fail("cuMemHostAlloc", 2)
    with pytest.raises(streamer.DeviceError, match=r"pinning 65536 bytes.*_OUT_OF_MEMORY.*Lower pinned_bytes"):
        load(checkpoint)


def test_a_full_device_is_reported_with_the_requested_and_the_free_bytes(
    fake_gpu: FakeGpu, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTorchCuda, "room_bytes", 1000)
    fake_gpu.set_free_bytes(12_345)
    with pytest.raises(streamer.DeviceError, match="12345 free") as caught:
        load(checkpoint)
    assert caught.value.code == "CUDA_ERROR_OUT_OF_MEMORY"
    assert caught.value.free_bytes == 12_345
    assert caught.value.requested_bytes is not None
    assert caught.value.requested_bytes > 1000
    assert fake_gpu.pinned_in_use() == 0


@pytest.mark.parametrize(
    ("devices", "asked", "name"), [(2, "cuda:5", "CUDA_ERROR_INVALID_DEVICE"), (0, "cuda", "CUDA_ERROR_NO_DEVICE")]
)
def test_a_device_that_torch_refuses_is_reported_with_the_drivers_name(
    fake_gpu: FakeGpu, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, devices: int, asked: str, name: str
) -> None:
    def refuse(_torch: object, _device: object) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal\nand more lines")

    monkeypatch.setattr("streamer.core.tensors.torch_copies.probe", refuse)
    fake_gpu.set_devices(devices)
    with pytest.raises(streamer.UnknownDeviceError, match=name) as caught:
        load(checkpoint, asked)
    assert isinstance(caught.value, streamer.DeviceError)
    assert caught.value.code == name


def test_without_a_driver_the_error_says_so(checkpoint: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(streamer.UnknownDeviceError, match="there is no CUDA driver here") as caught:
        load(checkpoint)
    assert caught.value.code == "CUDA_ERROR_NOT_FOUND"


def test_a_target_on_a_device_the_driver_does_not_name_is_refused(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    expected = streamer.load(checkpoint, progress=False)
    targets = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    for tensor in targets.values():
        fake_gpu.place(tensor, 1)
        FakeTorchCuda.place(tensor, 0)  # what torch believes
    with pytest.raises(streamer.DeviceError, match=r"a target for cuda:0 is on another device: its address is cuda:1"):
        streamer.load_into(checkpoint, targets, progress=False)
    assert not any(tensor.any() for tensor in targets.values())


@pytest.mark.parametrize("wrong", ["shape", "dtype"])
def test_a_wrong_target_on_a_device_is_refused_before_a_byte_is_read(
    fake_gpu: FakeGpu, tmp_path: Path, wrong: str
) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(4)}, tmp_path / "a.safetensors")
    target = torch.zeros(5) if wrong == "shape" else torch.zeros(4, dtype=torch.float64)
    fake_gpu.place(target, 0)
    with pytest.raises(streamer.TargetError, match=wrong if wrong == "shape" else "float64"):
        streamer.load_into(tmp_path / "a.safetensors", {"a": target}, progress=False)
    assert fake_gpu.calls("cuStreamCreate") == 0


def test_torch_copies_if_the_engine_cannot_use_the_device_and_the_report_says_why(
    fake_gpu: FakeGpu, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.core.tensors.torch_copies.TorchStaging.can_copy_to", lambda _self, _device: False)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, _device: tensor)  # the stand-in for a copy by torch
    fake_gpu.fail("cuDevicePrimaryCtxRetain", 46)
    with streamer.stream(checkpoint, device="cuda", options=SMALL, progress=False) as tensors:
        loaded = dict(tensors)
    assert len(loaded) == len(tensors.names)
    assert tensors.report.device_path == "torch"
    assert "busy or unavailable" in tensors.report.remarks[0]


def test_a_read_error_on_the_way_to_a_device_is_the_read_error(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(1 << 20)}, file)
    with streamer.open(file, device="cuda", options=SMALL) as opened:
        os_size = file.stat().st_size
        with file.open("r+b") as raw:
            raw.truncate(os_size - 1000)
        with pytest.raises(streamer.StorageError):
            opened.get_tensor("a")
    assert fake_gpu.pinned_in_use() == 0
