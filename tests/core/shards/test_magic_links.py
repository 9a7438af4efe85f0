"""Folders behind a link through ``/proc/PID/root``, which only the kernel follows: so sidecars are handed over."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
import torch
from pulls import pull, visible
from safetensors.torch import save_file

import streamer
from streamer.core.folders.open_folder import OpenFolder, are_in_one_another

TENSORS = {"a": torch.arange(100.0)}
SCRIPT = 'mount -t tmpfs sidecar "$1" && mkdir "$1/models" && echo ready && exec sleep 600'


@dataclass(frozen=True)
class Sidecar:
    """A folder that a process sees in mounts of its own.

    Attributes:
        linked: A link to it, through /proc.
        there: The path that the link leads to.
        home: The path that it has in the process; here, it is another folder.
    """

    linked: Path
    there: Path
    home: Path


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    place = tmp_path / "image"
    place.mkdir()
    command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            pytest.skip("no right to make mounts")
        linked = tmp_path / "mnt-models"
        linked.symlink_to(f"/proc/{process.pid}/root{place}/models")
        yield Sidecar(linked, Path(os.readlink(linked)), place / "models")
        process.kill()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    save_file(TENSORS, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "vae" / "config.json").write_text("[]")
    return folder


def test_a_pull_writes_behind_the_link_and_nowhere_else_regression(sidecar: Sidecar, model: Path) -> None:
    assert pull(model, sidecar.linked / "new")["exit_code"] == 0
    assert visible(sidecar.there / "new") == visible(model)
    assert not sidecar.home.exists()
    assert pull(model, sidecar.linked / "new")["read_bytes"] == 0
    (model / "vae" / "config.json").unlink()
    reported = pull(model, sidecar.linked / "new")
    assert reported["removed"] == ["vae/config.json"], reported
    assert visible(sidecar.there / "new") == visible(model)
    assert streamer.load(sidecar.linked / "new")["a"].equal(TENSORS["a"])


def test_a_folder_of_the_same_path_at_home_is_another_one_regression(sidecar: Sidecar, model: Path) -> None:
    assert pull(model, sidecar.linked)["exit_code"] == 0
    sidecar.home.mkdir()
    reported = pull(sidecar.linked, sidecar.home)
    assert reported["exit_code"] == 0, reported
    assert visible(sidecar.home) == visible(model)


@pytest.mark.parametrize("below", ["", "inner", "inner/deep"])
def test_a_folder_is_not_pulled_into_itself_through_a_link(sidecar: Sidecar, model: Path, below: str) -> None:
    assert pull(model, sidecar.linked)["exit_code"] == 0
    assert pull(sidecar.linked, sidecar.there / below)["exit_code"] == 2
    assert not (sidecar.there / "inner").exists()


def test_fsspec_reads_the_file_behind_a_link_regression(sidecar: Sidecar, model: Path) -> None:
    files, name = fsspec.core.url_to_fs(f"streamer::file://{model}/config.json")
    files.get_file(name, str(sidecar.linked / "got.json"))
    assert (sidecar.there / "got.json").read_text() == "{}"
    assert not sidecar.home.exists()


def test_a_write_replaces_the_file_behind_a_link(sidecar: Sidecar, model: Path, tmp_path: Path) -> None:
    files, name = fsspec.core.url_to_fs(f"streamer::file://{model}/config.json")
    (sidecar.there / "real.json").write_text("old")
    (sidecar.there / "link.json").symlink_to("real.json")
    files.get_file(name, str(sidecar.linked / "link.json"))
    assert (sidecar.there / "real.json").read_text() == "{}"
    assert (sidecar.there / "link.json").is_symlink()
    with open(tmp_path / "opened.json", "w+") as opened:
        os.rename(tmp_path / "opened.json", tmp_path / "renamed.json")
        files.get_file(name, f"/proc/self/fd/{opened.fileno()}")
    assert (tmp_path / "renamed.json").read_text() == "{}"


def test_links_may_be_kept_inside_the_folder_regression(sidecar: Sidecar, model: Path) -> None:
    inside = {"symlinks": "inside"}
    (sidecar.there / "blobs").mkdir()
    save_file(TENSORS, sidecar.there / "blobs" / "x")
    (sidecar.there / "model.safetensors").symlink_to("blobs/x")
    assert streamer.load(sidecar.linked, storage_options=inside)["a"].equal(TENSORS["a"])
    # At home there is a file of the path that the sidecar's has in its own mounts.
    (sidecar.home / "blobs").mkdir(parents=True)
    save_file({"a": torch.zeros(100)}, sidecar.home / "blobs" / "x")
    (sidecar.there / "model.safetensors").unlink()
    (sidecar.there / "model.safetensors").symlink_to(sidecar.home / "blobs" / "x")
    with pytest.raises(streamer.AccessDeniedError, match="leads out of the folder"):
        streamer.load(sidecar.linked, storage_options=inside)


def test_a_link_that_is_exchanged_during_a_pull_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "link").symlink_to("first")
    with OpenFolder(str(tmp_path / "link")) as folder:
        (tmp_path / "link").unlink()
        (tmp_path / "second").mkdir()
        (tmp_path / "link").symlink_to("second")
        folder.write_atomically("a.json", b"{}")
        with folder.inner("sub", is_made=True) as inner:
            inner.write_atomically("b.json", b"{}")
            inner.move("b.json", folder, "c.json")
        (tmp_path / "first" / "way").symlink_to(tmp_path)
        with pytest.raises(NotADirectoryError, match="link to one") as error:
            folder.inner("way")
    assert error.value.filename == str(tmp_path / "link" / "way")
    assert sorted(os.listdir(tmp_path / "first")) == ["a.json", "c.json", "sub", "way"]
    assert os.listdir(tmp_path / "second") == []


def test_folders_are_in_one_another_whatever_links_say(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("a/b")
    link, a, c = (str(tmp_path / name) for name in ("link", "a", "c"))
    assert are_in_one_another(link, a)
    assert are_in_one_another(a, f"{link}/new/folder")
    assert are_in_one_another(f"{c}/../a", link)
    assert not are_in_one_another(link, c)
    assert not are_in_one_another(f"{a}/new", f"{a}/b")  # which does not exist, and so holds nothing
