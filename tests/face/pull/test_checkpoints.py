"""``python -m streamer pull`` says "all there" of checkpoints that are, and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pulls import parts, pull, visible
from safetensors.torch import save_file
from uploads import STORAGES, UNLISTED, uploaded, uploaded_unlisted

import streamer

INDEX = "model.safetensors.index.json"
SHARDS = ["first.safetensors", "second.safetensors"]  # without numbers: the index alone names them


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint with an index, in a folder whose name no other test uses."""
    folder = tmp_path / "model"
    folder.mkdir()
    for number, shard in enumerate(SHARDS):
        save_file({f"tensor{number}": torch.arange(1000.0) + number}, folder / shard)
    write_index(folder, {f"tensor{number}": shard for number, shard in enumerate(SHARDS)})
    (folder / "config.json").write_text("{}")
    return folder


def write_index(folder: Path, weight_map: dict[str, str], name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refused(reported: dict[str, Any], copy: Path, kind: str, code: int, message: str) -> None:
    """Assert what a pull told, and that nothing has its final name."""
    assert (reported["error"], reported["exit_code"]) == (kind, code), reported
    assert message in reported["message"]
    assert visible(copy) == set()
    with pytest.raises(streamer.ObjectNotFoundError, match="half pulled"):
        streamer.load(copy)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_shard_that_only_the_index_has_is_reported_regression(
    request: pytest.FixtureRequest, storage: str, model: Path, tmp_path: Path
) -> None:
    (model / SHARDS[1]).unlink()
    uri, options = uploaded(request, storage, model)
    reported = pull(uri, tmp_path / "copy", options=options)
    refused(reported, tmp_path / "copy", "MissingShardError", 65, f"the index names shard '{SHARDS[1]}'")
    with pytest.raises(streamer.ObjectNotFoundError, match="the index names shard"):
        streamer.load(uri, storage_options=options)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_truncated_shard_is_reported_regression(
    request: pytest.FixtureRequest, storage: str, model: Path, tmp_path: Path
) -> None:
    (model / SHARDS[1]).write_bytes((model / SHARDS[1]).read_bytes()[:-100])
    uri, options = uploaded(request, storage, model)
    reported = pull(uri, tmp_path / "copy", options=options)
    refused(reported, tmp_path / "copy", "TruncatedError", 65, SHARDS[1])
    with pytest.raises(streamer.TruncatedError) as error:
        streamer.load(uri, storage_options=options)
    assert error.value.message in reported["message"]


def test_once_the_source_is_mended_only_that_is_read(model: Path, tmp_path: Path) -> None:
    whole = (model / SHARDS[1]).read_bytes()
    (model / SHARDS[1]).write_bytes(whole[:-100])
    assert pull(model, tmp_path / "copy")["exit_code"] == 65
    assert len(parts(tmp_path / "copy")) == 4
    (model / SHARDS[1]).write_bytes(whole)
    reported = pull(model, tmp_path / "copy")
    assert (reported["exit_code"], reported["read_bytes"]) == (0, len(whole)), reported
    assert len(streamer.load(tmp_path / "copy")) == 2


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        ({"a.safetensors": b""}, "HeaderError", "the object is empty"),
        ({"a.safetensors": b"version https://git-lfs.github.com/spec/v1\nsize 9\n"}, "HeaderError", "LFS"),
        ({INDEX: b"{"}, "ShardIndexError", "the index is not JSON"),
        ({"unet/a.safetensors": bytes(9)}, "HeaderError", "unet/a.safetensors"),
    ],
)
def test_damaged_files_are_reported(
    model: Path, tmp_path: Path, damage: dict[str, bytes], error: str, message: str
) -> None:
    for name, content in damage.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(content)
    refused(pull(model, tmp_path / "copy"), tmp_path / "copy", error, 65, message)


def test_a_tensor_that_its_shard_lacks_is_reported(model: Path, tmp_path: Path) -> None:
    write_index(model, {"tensor0": SHARDS[0], "tensor1": SHARDS[1], "tensor2": SHARDS[1]})
    refused(
        pull(model, tmp_path / "copy"), tmp_path / "copy", "ShardIndexError", 65, "the index promises tensor 'tensor2'"
    )


def test_a_gap_in_numbered_shards_is_reported_before_a_byte_is_read_regression(model: Path, tmp_path: Path) -> None:
    (model / INDEX).unlink()
    (model / SHARDS[0]).rename(model / "model-00001-of-00003.safetensors")
    reported = pull(model, tmp_path / "copy")
    assert (reported["error"], reported["exit_code"]) == ("MissingShardError", 65), reported
    assert "1 of the 3 shards model-*-of-00003.safetensors" in reported["message"]
    assert pull(model, tmp_path / "copy", "--exclude", "model-*")["exit_code"] == 0


def test_an_index_that_is_left_out_hides_no_gap_in_numbered_shards_regression(model: Path, tmp_path: Path) -> None:
    """It said "all there", as the storage has an index."""
    (model / SHARDS[0]).rename(model / "model-00001-of-00003.safetensors")
    reported = pull(model, tmp_path / "copy", "--exclude", INDEX)
    assert (reported["error"], reported["exit_code"]) == ("MissingShardError", 65), reported


@pytest.mark.parametrize(
    "patterns",
    [
        ("--include", "*.json"),
        ("--exclude", SHARDS[1]),
        ("--include", SHARDS[0]),
        ("--exclude", INDEX),
    ],
)
def test_what_the_user_left_out_is_not_missed(model: Path, tmp_path: Path, patterns: tuple[str, ...]) -> None:
    assert pull(model, tmp_path / "copy", *patterns)["exit_code"] == 0
    assert pull(model, tmp_path / "copy")["exit_code"] == 0
    assert len(streamer.load(tmp_path / "copy")) == 2


def test_hidden_files_and_indexes_of_other_formats_are_files_like_any(model: Path, tmp_path: Path) -> None:
    (model / "._a.safetensors").write_bytes(b"note")
    write_index(model, {"a": "pytorch_model-00001-of-00001.bin"}, "pytorch_model.bin.index.json")
    assert pull(model, tmp_path / "copy")["exit_code"] == 0


@pytest.mark.parametrize("storage", UNLISTED)
def test_without_listing_the_index_names_what_is_pulled_regression(
    request: pytest.FixtureRequest, storage: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model / "notes.txt").write_text("that nobody knows of")
    uri, options = uploaded_unlisted(request, storage, model)
    reported = pull(uri, tmp_path / "copy", options=options)
    assert reported["exit_code"] == 0, reported
    assert visible(tmp_path / "copy") == {*SHARDS, INDEX, "config.json"}
    assert "listing is forbidden" in caplog.text
    again = pull(uri, tmp_path / "copy", options=options)
    assert (again["exit_code"], again["read_bytes"], again["files"]) == (0, 0, 4), again


@pytest.mark.parametrize("storage", UNLISTED)
def test_a_missing_shard_is_reported_without_a_listing_regression(
    request: pytest.FixtureRequest, storage: str, model: Path, tmp_path: Path
) -> None:
    (model / SHARDS[1]).unlink()
    uri, options = uploaded_unlisted(request, storage, model)
    reported = pull(uri, tmp_path / "copy", options=options)
    assert reported["exit_code"] in (65, 77), reported  # S3 answers 403 for a missing object if listing is denied
    assert SHARDS[1] in reported["message"]
    assert not (tmp_path / "copy").exists()


def test_without_a_listing_no_file_is_reported_as_deleted(
    request: pytest.FixtureRequest, model: Path, tmp_path: Path
) -> None:
    (model / "notes.txt").write_text("that only a listing shows")
    uri, options = uploaded_unlisted(request, "gs", model)
    writer = request.getfixturevalue("gcs_server").storage_options()
    assert pull(uri, tmp_path / "copy", options=writer)["files"] == 5
    reported = pull(uri, tmp_path / "copy", options=options)
    assert (reported["exit_code"], reported["files"], reported["removed"]) == (0, 5, []), reported


@pytest.mark.parametrize("storage", STORAGES)
def test_a_misspelt_folder_suggests_the_near_one_and_leaves_none_behind_regression(
    request: pytest.FixtureRequest, storage: str, model: Path, tmp_path: Path
) -> None:
    uri, options = uploaded(request, storage, model)
    wrong = uri.replace("/model", "/modle")
    reported = pull(wrong, tmp_path / "copy", options=options)
    assert reported["exit_code"] == 66, reported
    if storage != "hf":  # the Hub lists no repositories
        assert "'model'" in reported["message"]
    assert not (tmp_path / "copy").exists()
