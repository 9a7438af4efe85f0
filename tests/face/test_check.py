"""``python -m streamer check``: whether a checkpoint would load, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from uploads import STORAGES, UNLISTED, uploaded, uploaded_unlisted

import streamer
from streamer._cli import main

INDEX = "model.safetensors.index.json"
SHARDS = ["first.safetensors", "second.safetensors"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for number, shard in enumerate(SHARDS):
        save_file({f"tensor{number}": torch.arange(1000.0)}, folder / shard)
    weight_map = {f"tensor{number}": shard for number, shard in enumerate(SHARDS)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def checked(uri: str | Path, options: dict[str, Any] | None = None, *more: str) -> tuple[int, str]:
    """Return the exit code, and what is on standard output."""
    arguments = ["check", str(uri), "--storage-options", json.dumps(options or {}), *more]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize("storage", STORAGES)
def test_a_whole_checkpoint_is_right(request: pytest.FixtureRequest, storage: str, model: Path) -> None:
    uri, options = uploaded(request, storage, model)
    code, told = checked(uri, options, "--json")
    report = json.loads(told)
    assert code == 0
    found = {name: report[name] for name in ("shards", "tensors", "bytes", "has_index", "manifest")}
    assert found == {"shards": 2, "tensors": 2, "bytes": 8000, "has_index": True, "manifest": "none"}
    assert "2 shards, 2 tensors" in checked(uri, options)[1]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_shard_that_is_missing_or_cut_is_told_as_by_a_load(
    request: pytest.FixtureRequest, storage: str, model: Path
) -> None:
    (model / SHARDS[1]).write_bytes((model / SHARDS[1]).read_bytes()[:-8])
    uri, options = uploaded(request, storage, model)
    code, told = checked(uri, options, "--json")
    with pytest.raises(streamer.TruncatedError) as error:
        streamer.load(uri, storage_options=options)
    assert (code, json.loads(told)["error"]) == (65, "TruncatedError")
    assert json.loads(told)["message"] == str(error.value)


def test_a_shard_of_the_index_that_is_missing_is_told(model: Path) -> None:
    (model / SHARDS[1]).unlink()
    code, told = checked(model, None, "--json")
    assert (code, json.loads(told)["error"]) == (65, "MissingShardError")


def test_a_manifest_is_compared_with_the_headers(model: Path) -> None:
    streamer.write_manifest(model, progress=False)
    assert json.loads(checked(model, None, "--json")[1])["manifest"] == "fits"
    save_file({"tensor1": torch.arange(1001.0)}, model / SHARDS[1])
    code, told = checked(model, None, "--json")
    assert (code, json.loads(told)["error"]) == (65, "ManifestError")


@pytest.mark.parametrize("storage", UNLISTED)
def test_a_checkpoint_that_may_not_be_listed_is_checked(
    request: pytest.FixtureRequest, storage: str, model: Path
) -> None:
    uri, options = uploaded_unlisted(request, storage, model)
    code, told = checked(uri, options, "--json")
    assert code == 0, told
    assert json.loads(told)["manifest"] in ("none", "unreadable")


def test_a_single_shard_is_one_shard_regression(model: Path) -> None:
    assert ": 1 shard, 1 tensor, 4.00 kB; " in checked(model / SHARDS[0])[1]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_ends_a_check_with_one_line_regression(
    model: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """It printed "Aborted!", and ended with 1."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamer._cli.check", interrupted)
    result = CliRunner().invoke(main, ["check", str(model), *more])
    assert (result.exit_code, result.stderr.strip()) == (130, "Error: interrupted")
    assert json.loads(result.stdout or "{}").get("exit_code", 130) == 130
    assert bool(result.stdout) == bool(more)
