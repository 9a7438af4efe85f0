"""What a save that fails leaves in its place, and what it advises if something is there already."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from each_row import each_row

import streamer


@pytest.mark.parametrize("name", ["new", "new/deep/m", "new/m.safetensors", "here/m", "here/m.safetensors"])
def test_a_save_that_fails_leaves_no_folder_that_it_made_regression(name: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    streamer.save({"b": torch.ones(1 << 18)}, tmp_path / "old")
    opened = streamer.open(tmp_path / "old")
    (tmp_path / "old/model.safetensors").unlink()
    with pytest.raises(streamer.StreamerError):
        streamer.save({"a": torch.ones(1 << 18), "b": opened["b"]}, tmp_path / name, max_shard_bytes=1 << 20)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "here").iterdir()) == []


@each_row("there", ["adapter.safetensors", "model-00001-of-00001.safetensors", "x-y.safetensors"])
@each_row("name", ["", "model.safetensors"])
def test_overwrite_is_advised_only_if_it_helps_regression(name: str, there: str, tmp_path: Path) -> None:
    """The refusal said overwrite=True, with which the save was refused as well."""
    streamer.save({"a": torch.ones(1)}, tmp_path / there)
    with pytest.raises(streamer.UsageError) as refused:
        streamer.save({"a": torch.zeros(1)}, tmp_path / name)
    if "overwrite=True" in str(refused.value):
        streamer.save({"a": torch.zeros(1)}, tmp_path, overwrite=True)
        assert streamer.load(tmp_path)["a"] == 0
    else:
        assert "move" in str(refused.value)
        with pytest.raises(streamer.UsageError):
            streamer.save({"a": torch.zeros(1)}, tmp_path / name, overwrite=True)
