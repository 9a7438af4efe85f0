"""Shards that count themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from each_row import each_row
from safetensors.torch import save_file

import streamer
from streamer.core.format.shard_names import MOST_SHARDS, incomplete_series

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def some_of(total: int, *numbers: int, first: int = 1) -> list[str]:
    return [f"m-{number:05}-of-{total:05}.safetensors" for number in numbers or range(first, first + total)]


@each_row(
    "names",
    [
        [],
        ["model.safetensors", "other.safetensors"],
        [ONE, TWO],
        ["model-00000-of-00002.safetensors", ONE],  # some count from 0
        ["model-00001-of-00002.bin", "model-00002-of-00002.bin"],
        ["model-00001-of-00002.bin.index.json"],
        ["1-of-1.safetensors"],
        ["shard-00002-model-00001-of-00003.safetensors"],  # one file of rank 2, which wrote no other
    ],
)
def test_a_series_is_whole(names: list[str]) -> None:
    assert incomplete_series(names) == []


@each_row(
    ("names", "described"),
    [
        ([ONE], f"1 of the 2 shards model-*-of-00002.safetensors (missing: {TWO})"),
        ([ONE, ONE], f"1 of the 2 shards model-*-of-00002.safetensors (missing: {TWO})"),
        ([ONE, TWO, "b-1-of-2.safetensors"], "1 of the 2 shards b-*-of-2.safetensors (missing: b-2-of-2.safetensors)"),
        (some_of(3, 0, 2), "2 of the 3 shards m-*-of-00003.safetensors (missing: m-00001-of-00003.safetensors)"),
        (some_of(2, 0, 2), "1 of the 2 shards m-*-of-00002.safetensors (missing: m-00001-of-00002.safetensors)"),
        (some_of(2, 9), f"0 of the 2 shards m-*-of-00002.safetensors (missing: {', '.join(some_of(2))})"),
        (
            ["m-5-of-999999999.safetensors"],
            "1 of the 999999999 shards m-*-of-999999999.safetensors (missing: m-1-of-999999999.safetensors, "
            "m-2-of-999999999.safetensors, m-3-of-999999999.safetensors and 999999995 more)",
        ),
    ],
)
def test_an_incomplete_series_is_an_error_with_the_missing_names(names: list[str], described: str) -> None:
    (found,) = incomplete_series(names)
    assert str(found) == described


def test_a_folder_that_lost_a_shard_is_refused_and_its_pattern_is_loaded(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / ONE)
    with pytest.raises(streamer.ObjectNotFoundError, match=rf"1 of the 2 shards .* \(missing: {TWO}\), and no index"):
        streamer.load(tmp_path)
    assert list(streamer.load(f"{tmp_path}/*.safetensors")) == ["a"]
    save_file({"b": torch.arange(4.0)}, tmp_path / TWO)
    assert sorted(streamer.load(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("way", ["options", "environment"])
def test_the_rest_is_loaded_where_shards_may_be_missing_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / ONE)
    options = streamer.Options(allow_missing_shards=True) if way == "options" else None
    if way == "environment":
        monkeypatch.setenv("STREAMER_ALLOW_MISSING_SHARDS", "1")
    with streamer.stream(tmp_path, options=options, progress=False) as stream:
        assert [name for name, _ in stream] == ["a"]
    said = f"the folder holds 1 of the 2 shards model-*-of-00002.safetensors (missing: {TWO})"
    assert stream.report.remarks == (said,)
    assert said in caplog.text
    assert list(streamer.load(tmp_path, options=options)) == ["a"]
    with streamer.open(tmp_path, options=options) as checkpoint:
        assert list(checkpoint.keys()) == ["a"]
    target = {"a": torch.zeros(4)}
    assert streamer.load_into(tmp_path, target, options=options).remarks == (said,)


def test_a_shard_that_an_index_names_must_be_there_all_the_same(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / ONE)
    index = {"weight_map": {"a": ONE, "b": TWO}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(streamer.ObjectNotFoundError, match=TWO):
        streamer.load(tmp_path, options=streamer.Options(allow_missing_shards=True))


def test_a_folder_holds_as_many_shards_as_an_index_may_name(tmp_path: Path) -> None:
    for number in range(MOST_SHARDS + 1):
        (tmp_path / f"{number}.safetensors").touch()
    with pytest.raises(streamer.FormatError, match=f"{MOST_SHARDS + 1} shards, more than the {MOST_SHARDS} allowed"):
        streamer.load(tmp_path)
    with pytest.raises(streamer.HeaderError, match="the object is empty"):  # so many were looked at
        streamer.load(f"{tmp_path}/[!0]*.safetensors")
