"""What a save that fails leaves in its place, and what it advises if something is there already."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from servers.seaweedfs import SeaweedServer

import streamer
from streamer._save import saving
from streamer._save.saving import Saving


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


@pytest.mark.parametrize("full", [False, True])
def test_of_two_saves_in_place_of_one_file_a_whole_checkpoint_stays_regression(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that failed removed the index on which the other counted: that failed, too, and the folder held both."""
    streamer.save({"old": torch.ones(3)}, tmp_path)
    how: dict[str, Any] = {"overwrite": True, "max_shard_bytes": 12}
    began, goes_on, errors = threading.Event(), threading.Event(), list[BaseException]()

    def save_other() -> None:
        try:
            streamer.save({"c": torch.ones(3), "d": torch.ones(3)}, tmp_path, **how)
        except streamer.StreamerError as error:
            errors.append(error)

    other, written = threading.Thread(target=save_other), Saving._with_old_digests

    def in_turn(*arguments: Any) -> Any:
        """The other save has written an index for the old file, and goes on when this one has written a manifest."""
        if threading.current_thread() is other:
            began.set()
            goes_on.wait()
            if full:
                raise streamer.StorageError("the disk is full")
            return written(*arguments)
        place = written(*arguments)
        goes_on.set()
        other.join()
        return place

    monkeypatch.setattr(Saving, "_with_old_digests", in_turn)
    other.start()
    began.wait()
    new = {"a": torch.ones(3), "b": torch.ones(3)}
    if full:
        with pytest.raises(streamer.ChangedError):
            streamer.save(new, tmp_path, **how)
    else:
        streamer.save(new, tmp_path, **how)
    assert [type(each) for each in errors] == [streamer.StorageError if full else streamer.ChangedError]
    assert streamer.load(tmp_path, verify="manifest" if not full else None).keys() == ({"old"} if full else {"a", "b"})


def test_a_manifest_that_becomes_shorter_meanwhile_is_another_programs_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error said that the file was cut short, and advised to download it again."""
    streamer.save({"old": torch.ones(3)}, tmp_path)
    read = saving.old_manifest

    def cut_first(*arguments: Any) -> Any:
        os.truncate(tmp_path / "model.safetensors.manifest.json", 9)
        return read(*arguments)

    monkeypatch.setattr(saving, "old_manifest", cut_first)
    with pytest.raises(streamer.ChangedError, match="another program has changed a file"):
        streamer.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path, overwrite=True, max_shard_bytes=12)
    assert streamer.load(tmp_path).keys() == {"old"}


# --- A process that a progress function forks, and that ends there, leaves what its parent is saving alone ----------

TENSORS = {f"w{number}": np.full(3 << 20, number, dtype="f4") for number in range(3)}


class Forking:
    """A progress function that forks once; the child leaves by an exception, through the frames of the save."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.children, self._parent = error, list[int](), os.getpid()

    def __call__(self, done_bytes: int, _total_bytes: int) -> None:
        if done_bytes and not self.children:
            child = os.fork()
            if child == 0:
                raise self.error
            self.children.append(child)
            assert os.waitpid(child, 0)[1] >= 0


def save_with_fork(error: BaseException, uri: Any, **how: Any) -> None:
    parent, forking = os.getpid(), Forking(error)
    try:
        streamer.save(TENSORS, uri, progress=forking, **how)
    finally:
        if os.getpid() != parent:
            os._exit(0)  # the child, after all that a save does behind an exception
    assert forking.children


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize(
    "how", [{}, {"max_shard_bytes": "13MB"}, {"overwrite": True}], ids=["one", "shards", "replaced"]
)
def test_a_child_leaves_the_drafts_of_its_parent_alone_regression(
    error: BaseException, how: dict[str, Any], tmp_path: Path
) -> None:
    if "overwrite" in how:
        streamer.save({"old": np.zeros(3)}, tmp_path / "model")
    save_with_fork(error, tmp_path / "model", **how)
    loaded = streamer.load(tmp_path / "model", framework="np", progress=False)
    assert all(np.array_equal(loaded[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_aborts_no_upload_of_its_parent(s3_server: SeaweedServer, tmp_path: Path) -> None:
    uri, options = f"s3://private/{tmp_path.name}/model", s3_server.storage_options()
    save_with_fork(SystemExit(0), uri, storage_options=options)
    loaded = streamer.load(uri, framework="np", storage_options=options, progress=False)
    assert np.array_equal(loaded["w2"], TENSORS["w2"])
