"""Encrypted checkpoints on CUDA devices, with the fake driver: pieces are decrypted in the slot they pass through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from comparison import assert_same

import streamer
from gpu.fake_devices import FakeGpu
from gpu.fake_moves import counted_moves

KEY = bytes(range(32))
PIECE = 256 << 10
TENSORS = {
    "rows": torch.arange(1000 * 1024, dtype=torch.float32).view(1000, 1024),
    "bytes": torch.arange(PIECE + 1, dtype=torch.int32).to(torch.uint8),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 7),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    streamer.save(TENSORS, tmp_path / "model", key=KEY)
    return tmp_path / "model"


# With 1 MiB of pinned memory a block would have 64 KiB, and slots are as large as a piece instead.
@pytest.mark.parametrize("pinned_bytes", [1 << 20, 16 << 20])
def test_a_device_gets_decrypted_tensors(fake_gpu: FakeGpu, model: Path, pinned_bytes: int) -> None:
    options = streamer.Options(pinned_bytes=pinned_bytes)
    with streamer.stream(model, device="cuda:0", key=KEY, options=options, progress=False) as tensors:
        assert_same(dict(tensors), TENSORS)
    assert "ring" in (tensors.report.device_path or "")


def test_targets_on_a_device_are_filled(fake_gpu: FakeGpu, model: Path) -> None:
    targets = {name: fake_gpu.place(torch.empty_like(tensor), 0) for name, tensor in TENSORS.items()}
    streamer.load_into(model, targets, key=KEY, progress=False)
    assert_same(targets, TENSORS)


def test_a_changed_piece_is_not_delivered(fake_gpu: FakeGpu, model: Path) -> None:
    file = model / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(streamer.TamperedError, match="tensor 'rows'"):
        streamer.load(model, device="cuda:0", key=KEY, progress=False)


def test_parts_are_cut_in_host_memory(fake_gpu: FakeGpu, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_bytes = counted_moves(fake_gpu, monkeypatch)
    part = TENSORS["rows"].chunk(3)[1]
    loaded = streamer.load(model, device="cuda:0", key=KEY, slices={"rows": streamer.Slice(0, 1, 3)}, progress=False)
    assert torch.equal(loaded["rows"], part)
    assert moved_bytes == [part.nbytes]
