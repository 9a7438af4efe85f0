"""If no private folder can be made, or it is full, there is one error, which names TMPDIR."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer.core.folders import private_folders
from streamer.core.folders.private_folders import private_folder, room_in
from streamer.integrations.library_calls import Location
from streamer.integrations.model_folder import ModelFolder, SingleFile


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder can be written, as in a container with a read-only root."""

    def refuse(*_arguments: Any, **_named: Any) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)


def check(error: streamer.StorageError) -> None:
    assert type(error) is streamer.StorageError  # and no missing object
    assert "Set TMPDIR" in str(error)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_cache_without_a_folder_names_tmpdir_regression(cache: str, scheme: str, model: Path) -> None:
    path = f"{model}/model.safetensors"
    if scheme == "memory":
        fsspec.filesystem("memory").put(path, "/tmpdir/model.safetensors")
        path = "/tmpdir/model.safetensors"
    with pytest.raises(streamer.StorageError) as error:
        streamer.load(f"{cache}::{scheme}://{path}", storage_options={cache: {"skip_instance_cache": True}})
    check(error.value)


@pytest.mark.usefixtures("nowhere")
def test_a_model_without_a_folder_names_tmpdir_regression(model: Path) -> None:
    for made in (
        private_folder,
        lambda: ModelFolder(Location(uri=str(model))),
        lambda: SingleFile(Location(uri=f"{model}/model.safetensors")),
    ):
        with pytest.raises(streamer.StorageError) as error:
            made()
        check(error.value)


def test_a_full_folder_names_tmpdir_and_itself(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, _data: bytes) -> int:
        raise OSError(28, os.strerror(28), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(streamer.StorageError, match="No space left") as error:
        ModelFolder(Location(uri=str(model)))
    check(error.value)
    assert error.value.code == "ENOSPC"


def test_other_errors_are_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error, room_in(str(tmp_path)):
        (tmp_path / "none").read_bytes()
    assert not isinstance(error.value, streamer.StreamerError)
    assert private_folders.no_temporary_folder(OSError(13, "Permission denied")).code == "EACCES"
