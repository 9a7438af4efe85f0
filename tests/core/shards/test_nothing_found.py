"""Where there is no shard the error says what there is instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save_file

import streamer


def said(uri: str | Path) -> str:
    with pytest.raises(streamer.ObjectNotFoundError) as caught:
        streamer.load(uri)
    return str(caught.value).partition(": ")[2]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with two folders and a file, on storages of both kinds."""
    if request.param == "disk":
        for name in ("fp16", "fp32"):
            (tmp_path / "m" / name).mkdir(parents=True)
            (tmp_path / "m" / name / "x").touch()
        return str(tmp_path / "m")
    files = MemoryFileSystem()
    for name in ("fp16", "fp32"):
        files.pipe_file(f"/{tmp_path.name}/m/{name}/x", b"")
    return f"memory://{tmp_path.name}/m"


def test_a_folder_of_folders_lists_them(folder: str) -> None:
    assert said(folder).endswith("the folder holds no *.safetensors file, but fp16/, fp32/. Name one of its folders")


def test_the_folder_above_a_snapshot_of_the_hubs_cache_is_recognised(tmp_path: Path) -> None:
    for name in ("blobs", "refs", "snapshots/abc"):
        (tmp_path / name).mkdir(parents=True)
    assert said(str(tmp_path)).endswith("Name a folder in its snapshots/, one for each revision")


def test_a_pattern_of_folders_names_them(folder: str) -> None:
    assert said(f"{folder}/fp*").endswith("It matches folders (fp16/, fp32/), not files: name each, in a list of URIs")


def test_the_error_for_a_pattern_in_the_middle_says_where_one_may_be(folder: str) -> None:
    assert said(f"{folder}/*/model.safetensors").endswith(
        "Only the last part of a URI may be a pattern: name each folder, in a list of URIs"
    )


def test_the_error_for_a_pattern_without_a_match_lists_the_names(folder: str) -> None:
    assert said(f"{folder}/*.bin").endswith("no file matches this pattern. The folder holds fp16/, fp32/")
    assert said(f"{folder}/none/*.safetensors").endswith("There is no such folder, or it is empty")


def test_weights_of_another_format_are_named(tmp_path: Path) -> None:
    for name in ("config.json", "model.onnx", "tokenizer.json"):
        (tmp_path / name).touch()
    assert said(tmp_path) == (
        "the folder holds no *.safetensors file, but model.onnx, config.json, tokenizer.json. "
        "model.onnx is a graph of ONNX: convert the model that it was exported from"
    )


def test_the_first_of_many_files_are_named(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").touch()
    assert "but 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 4 more. Check its name" in said(tmp_path)


def test_a_folder_whose_name_has_the_marks_of_a_pattern_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m[1]*").mkdir()
    save_file({"a": torch.zeros(2)}, tmp_path / "m[1]*" / "x.safetensors")
    for name in ("m[1]*", "m[1]*/x.safetensors", "m[1]*/*.safetensors", "m[1]*/[x].safetensors"):
        assert list(streamer.load(tmp_path / name)) == ["a"]


def test_the_error_for_an_absent_name_suggests_a_similar_one(folder: str) -> None:
    assert "Near: 'fp16'" in said(f"{folder}/pf16")


def test_what_the_peek_of_a_storage_raises_is_ignored(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("streamer.backends.posix.store.PosixStore.peek", fail)
    monkeypatch.setattr("streamer.backends.fsspec.store.FsspecStore.peek", fail)
    assert "folder" in said(folder)


def test_hidden_files_are_no_shards(tmp_path: Path) -> None:
    """Drafts of a download and what macOS writes beside each file were loaded, or ended the load."""
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / ".draft.safetensors")
    (tmp_path / "._model.safetensors").write_bytes(b"\0\5\x16\7")
    assert list(streamer.load(tmp_path)) == ["a"]
    assert list(streamer.load(f"{tmp_path}/*.safetensors")) == ["a"]
    assert list(streamer.load(f"{tmp_path}/.d*.safetensors")) == ["b"]
    assert list(streamer.load(tmp_path / ".draft.safetensors")) == ["b"]


def test_a_folder_of_hidden_files_alone_says_why_it_holds_no_shard(tmp_path: Path) -> None:
    (tmp_path / ".draft.safetensors").touch()
    assert said(tmp_path).endswith(
        ".draft.safetensors is hidden, so the folder is loaded without it: rename it, or name it itself"
    )


def test_a_folder_without_a_name_is_not_called_one_to_name(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Object stores have such names: `folder//model.safetensors`."""
    for store in ("posix.store.PosixStore", "fsspec.store.FsspecStore"):
        monkeypatch.setattr(f"streamer.backends.{store}.peek", lambda *_: ["/"])
    assert said(folder).endswith("but /. Names there have two slashes in a row: name the files")


def test_an_unfinished_download_beside_the_shards_is_remarked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A shard may be missing, and nothing else tells it."""
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    for suffix in ("incomplete", "part"):
        (tmp_path / f"model-2.safetensors.{suffix}").touch()
    with streamer.stream(tmp_path) as tensors:
        assert [name for name, _ in tensors] == ["a"]
    remark = "a download left model-2.safetensors.incomplete unfinished, and 1 more"
    assert remark in tensors.report.remarks
    assert remark in caplog.text
