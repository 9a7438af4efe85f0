"""Parts of tensors on a CUDA device, through the real engine and the fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from comparison import assert_same
from safetensors.torch import save_file

import streamer
from gpu.fake_devices import FakeGpu
from gpu.fake_moves import counted_moves
from streamer import Slice

TENSORS = {name: torch.arange(128 * 64, dtype=torch.float32).view(128, 64) for name in ("rows", "columns", "whole")}
SLICES = {"rows": Slice(0, 1, 4), "columns": Slice(1, 1, 4)}
PARTS = {
    "rows": TENSORS["rows"][32:64],
    "columns": TENSORS["columns"][:, 16:32].contiguous(),
    "whole": TENSORS["whole"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file({name: tensor.clone() for name, tensor in TENSORS.items()}, tmp_path / "a.safetensors")
    return tmp_path


def test_a_device_gets_no_more_than_the_part(fake_gpu: FakeGpu, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_bytes = counted_moves(fake_gpu, monkeypatch)
    with streamer.stream(file, device="cuda:0", slices=SLICES, progress=False) as tensors:
        assert_same(dict(tensors), PARTS)
    assert moved_bytes == [PARTS["columns"].nbytes]  # by torch; the others went through the ring
    assert tensors.report.device_path == "ring+torch"


def test_targets_on_a_device_are_filled_with_parts(fake_gpu: FakeGpu, file: Path) -> None:
    targets = {name: fake_gpu.place(torch.empty_like(part), 0) for name, part in PARTS.items()}
    streamer.load_into(file, targets, slices=SLICES, progress=False)
    assert_same(targets, PARTS)
