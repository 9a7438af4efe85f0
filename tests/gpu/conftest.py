"""The fake GPU; the tests of a real one bring what they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
