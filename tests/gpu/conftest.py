"""The fake GPU, and the real one where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda, compile_fake_driver
from streamer import _native
from streamer.core import torch_cuda


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake_driver(tmp_path_factory.mktemp("fake_driver"))


@pytest.fixture
def fake_gpu(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """Two fake devices; afterwards nothing of them is left, and no rule was broken."""
    gpu = FakeGpu(fake_driver)
    gpu.reset()
    monkeypatch.setattr(torch_cuda, "TorchCuda", FakeTorchCuda)
    monkeypatch.setattr(torch_cuda, "probe", lambda _torch, _device: None)
    monkeypatch.setattr(FakeTorchCuda, "placed", {})
    monkeypatch.setattr(FakeTorchCuda, "recorded", [])
    _native.cuda_use_library_for_tests(gpu.path)
    yield gpu
    assert gpu.pinned_in_use() == 0
    streamer.release_pinned_memory()
    _native.cuda_use_library_for_tests("")
    assert gpu.pinned_bytes() == 0
    assert gpu.violations() == 0


@pytest.fixture(scope="session")
def real_gpu() -> int:
    """How many CUDA devices torch can use; the test is skipped where it is none."""
    count = torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
    if count == 0:
        pytest.skip("NO GPU: there is no CUDA device here, or torch is not built for it; nothing of this was checked")
    return count
