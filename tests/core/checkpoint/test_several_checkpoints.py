"""Several checkpoints in one load: an index decides between the shards of its own one, and not between checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer


def checkpoint(folder: Path, *, has_index: bool, **values: float) -> str:
    """Write one shard for each of the tensors."""
    folder.mkdir()
    shards = {name: f"{name}.safetensors" for name in values}
    for name, value in values.items():
        save_file({name: torch.full((4,), value)}, folder / shards[name])
    if has_index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return str(folder)


@pytest.mark.parametrize("second_has_index", [True, False])
@pytest.mark.parametrize("first_has_index", [True, False])
def test_a_tensor_that_two_checkpoints_hold_is_refused_regression(tmp_path, first_has_index, second_has_index):
    """The last index won, or the only one, without a word."""
    first = checkpoint(tmp_path / "first", has_index=first_has_index, x=1, a=1)
    second = checkpoint(tmp_path / "second", has_index=second_has_index, x=2, b=2)
    for uris in ([first, second], [second, first]):
        with pytest.raises(streamer.FormatError, match="'x' is in two shards"):
            streamer.load(uris)


def test_checkpoints_of_other_tensors_are_joined(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, a=1)
    second = checkpoint(tmp_path / "second", has_index=True, b=2)
    loaded = streamer.load([first, second])
    assert {name: tensor[0].item() for name, tensor in loaded.items()} == {"a": 1, "b": 2}


def test_an_index_decides_between_its_own_shards_beside_another_checkpoint(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, x=1, y=1)
    save_file({"x": torch.full((4,), 9.0), "y": torch.full((4,), 1.0)}, tmp_path / "first/y.safetensors")  # a stale x
    second = checkpoint(tmp_path / "second", has_index=False, b=2)
    loaded = streamer.load([second, first])
    assert {name: tensor[0].item() for name, tensor in loaded.items()} == {"x": 1, "y": 1, "b": 2}


def test_a_shard_beside_the_index_that_names_it_is_refused(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, x=1)
    with pytest.raises(streamer.FormatError, match="the same shard is named twice"):
        streamer.load([first, f"{first}/x.safetensors"])
