"""Links are followed wherever they lead, or kept inside the checkpoint's folder: by where the opened file lies."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource

INSIDE = {"symlinks": "inside"}
WEIGHT = {"weight": torch.arange(100.0)}


@pytest.fixture
def folder(tmp_path):
    """A folder ``model`` with nothing in it, beside a shard outside."""
    (tmp_path / "model").mkdir()
    save_file(WEIGHT, tmp_path / "outside.safetensors")
    return tmp_path / "model"


def link_within(folder):
    (folder / "blobs").mkdir()
    save_file(WEIGHT, folder / "blobs" / "x.safetensors")
    (folder / "a.safetensors").symlink_to("blobs/x.safetensors")


def absolute_link_within(folder):
    (folder / "blobs").mkdir()
    save_file(WEIGHT, folder / "blobs" / "x.safetensors")
    (folder / "a.safetensors").symlink_to(folder / "blobs" / "x.safetensors")


def no_link(folder):
    save_file(WEIGHT, folder / "a.safetensors")


def link_out(folder):
    (folder / "a.safetensors").symlink_to("../outside.safetensors")


def absolute_link_out(folder):
    (folder / "a.safetensors").symlink_to(folder.parent / "outside.safetensors")


def link_to_a_link_out(folder):
    (folder / "b").symlink_to("../outside.safetensors")
    (folder / "a.safetensors").symlink_to("b")


def folder_out(folder):
    """The index names ``sub/…``, which is a name inside the folder, and a link out of it."""
    (folder / "sub").symlink_to("..")
    index = {"weight_map": {"weight": "sub/outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def folder_with_the_same_beginning(folder):
    (folder.parent / "model-of-another").mkdir()
    save_file(WEIGHT, folder.parent / "model-of-another" / "x.safetensors")
    (folder / "a.safetensors").symlink_to("../model-of-another/x.safetensors")


def index_out(folder):
    no_link(folder)
    index = {"weight_map": {"weight": "a.safetensors"}}
    (folder.parent / "index.json").write_text(json.dumps(index))
    (folder / "model.safetensors.index.json").symlink_to("../index.json")


STAYING = [no_link, link_within, absolute_link_within]
LEAVING = [
    link_out,
    absolute_link_out,
    link_to_a_link_out,
    folder_out,
    folder_with_the_same_beginning,
    index_out,
]


def named(make):
    return make.__name__


@pytest.mark.parametrize("options", [None, {"symlinks": "follow"}, {"file": {"symlinks": "follow"}}])
@pytest.mark.parametrize("make", [*STAYING, *LEAVING], ids=named)
def test_links_are_followed_by_default(folder, make, options):
    make(folder)
    assert torch.equal(streamer.load(folder, storage_options=options)["weight"], WEIGHT["weight"])


@pytest.mark.parametrize("options", [INSIDE, {"file": INSIDE}])
@pytest.mark.parametrize("make", STAYING, ids=named)
def test_links_inside_the_folder_are_followed_in_both_modes(folder, make, options):
    make(folder)
    for uri in (folder, f"file://{folder}", folder / "*.safetensors"):
        assert torch.equal(streamer.load(uri, storage_options=options)["weight"], WEIGHT["weight"])


@pytest.mark.parametrize("make", LEAVING, ids=named)
def test_a_link_out_of_the_folder_is_refused_when_asked(folder, make):
    make(folder)
    with pytest.raises(streamer.AccessDeniedError, match="leads out of the folder") as caught:
        streamer.load(folder, storage_options=INSIDE)
    assert "symlinks" in str(caught.value)


def test_the_folder_itself_may_be_reached_through_a_link(folder):
    no_link(folder)
    (folder.parent / "latest").symlink_to("model")
    assert streamer.load(folder.parent / "latest", storage_options=INSIDE)
    assert streamer.load(folder.parent / "latest" / "a.safetensors", storage_options=INSIDE)


def test_a_file_exchanged_for_a_link_after_it_was_listed_is_refused(folder):
    """What is judged is the descriptor: no look at the path beforehand could see this."""
    no_link(folder)
    inside = FileSource(str(folder / "a.safetensors"), inside=str(folder))
    size = os.stat(inside.path).st_size
    os.unlink(inside.path)
    os.symlink("../outside.safetensors", inside.path)
    session = ReadSession([SourceObject("a", inside, size)], plan_reads([Item(0, 0, size)], 0), resolve(None))
    with pytest.raises(streamer.AccessDeniedError):
        session.next_items()


@pytest.mark.parametrize("options", [None, INSIDE])
def test_a_loop_of_links_ends_with_its_errno(folder, options):
    (folder / "a.safetensors").symlink_to("b.safetensors")
    (folder / "b.safetensors").symlink_to("a.safetensors")
    with pytest.raises(streamer.StorageError):
        streamer.load(folder, storage_options=options)
    with pytest.raises(streamer.StorageError, match="ELOOP"):
        streamer.load(folder / "a.safetensors", storage_options=options)


@pytest.mark.parametrize("value", ["refuse", "", None, True, "INSIDE"])
def test_an_unknown_mode_is_refused(folder, value):
    no_link(folder)
    with pytest.raises(streamer.OptionError, match=r"'follow' or 'inside'"):
        streamer.load(folder, storage_options={"symlinks": value})


def test_a_file_that_is_removed_while_its_links_are_followed_is_not_found_regression(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(4)}, path)
    of_system = os.path.samefile

    def removed(one, other):
        path.unlink(missing_ok=True)
        return of_system(one, other)

    monkeypatch.setattr(os.path, "samefile", removed)
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(path)
