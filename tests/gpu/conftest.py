"""The fake GPU; the tests of a real one bring what they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.fake_devices import FakeGpu, attached_fake_gpu, compile_fake


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_cuda", tmp_path_factory.mktemp("fake_driver"))


@pytest.fixture
def fake_gpu(fake_driver: Path) -> Iterator[FakeGpu]:
    """Two fake devices; afterwards nothing of them is left, and no rule was broken."""
    with attached_fake_gpu(fake_driver) as gpu:
        yield gpu
