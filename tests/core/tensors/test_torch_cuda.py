"""Which of torch's CUDA devices the engine fills by itself. torch and the driver are stand-ins: CI has no GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamer import _native
from streamer.core.tensors.torch_copies import TorchCuda


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
