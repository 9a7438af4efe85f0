"""Shards that count themselves."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer.core.format.shard_names import first_missing

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([], None),
        (["model.safetensors", "other.safetensors"], None),
        ([ONE, TWO], None),
        (["model-00000-of-00002.safetensors", ONE], None),  # some count from 0
        ([ONE], ("model-*-of-00002.safetensors", 1, 2)),
        ([ONE, TWO, "b-1-of-3.safetensors"], ("b-*-of-3.safetensors", 1, 3)),
        (["model-00001-of-00002.bin"], None),
        (["1-of-1.safetensors"], None),
        ([ONE, ONE], ("model-*-of-00002.safetensors", 1, 2)),
    ],
)
def test_a_series_is_whole_or_named(names: list[str], missing: tuple[str, int, int] | None) -> None:
    assert first_missing(names) == missing


def test_a_folder_that_lost_a_shard_is_refused_and_its_glob_is_loaded(tmp_path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / ONE)
    with pytest.raises(streamer.ObjectNotFoundError, match="1 of the 2 shards") as caught:
        streamer.load(tmp_path)
    assert "a glob (folder/*.safetensors)" in str(caught.value)
    assert list(streamer.load(f"{tmp_path}/*.safetensors")) == ["a"]
    save_file({"b": torch.arange(4.0)}, tmp_path / TWO)
    assert sorted(streamer.load(tmp_path)) == ["a", "b"]
