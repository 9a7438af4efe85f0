"""A storage may list any name: none leads a pull out of its folder, and none is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulls import pull, visible
from servers.scripted_http import Answer, Request, ScriptedServer

from streamer._pull.listing import check_names, is_safe
from streamer.core.errors import FormatError

OUTSIDE = [
    "..%2f..%2fevil.json",
    "%2fetc%2fevil.json",
    "a%00.json",
    "%2e%2e%2fevil.json",
    ".streamer-pull%2fcomplete.json",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_page_that_links_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/object/"):
            answer.become(200, f'<a href="{name}">x</a><a href="good.json">y</a>'.encode(), Content_Type="text/html")

    with ScriptedServer(b"{}", script) as server:
        told = pull(f"{server.url}/", tmp_path / "a" / "copy")
        assert (told["exit_code"], told["error"]) == (65, "FormatError"), told
        assert visible(tmp_path / "a") == {f"copy/{each}" for each in (".streamer-pull/lock",)}
        assert pull(f"{server.url}/", tmp_path / "a" / "copy", "--include", "good.json")["exit_code"] == 0
    assert sorted(os.listdir(tmp_path / "a" / "copy")) == [".streamer-pull", "good.json"]


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    for name in ("model/vae", "outside", "copy"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "model" / "vae" / "a.json").write_text("{}")
    (tmp_path / "copy" / "vae").symlink_to(tmp_path / "outside")
    told = pull(tmp_path / "model", tmp_path / "copy")
    assert (told["exit_code"], "a link" in told["message"]) == (73, True), told
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    for name in ("model", "copy"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "a.json").write_text("{}")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "copy" / "a.json").symlink_to(tmp_path / "precious")
    assert pull(tmp_path / "model", tmp_path / "copy")["exit_code"] == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "copy" / "a.json").is_symlink()


def test_a_name_that_is_a_file_and_a_folder_is_refused() -> None:
    with pytest.raises(FormatError, match="'a/b' as a file, and as the folder of 'a/b/c'"):
        check_names(["a/b", "a/b/c", "d"], "s3://bucket/model")


def test_a_record_that_names_files_outside_is_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.json").write_text("{}")
    copy = tmp_path / "copy"
    pull(tmp_path / "model", copy)
    (tmp_path / "precious").write_text("mine")
    record = copy / ".streamer-pull" / "complete.json"
    record.write_text(record.read_text().replace('"a.json"', '"../precious"'))
    assert pull(tmp_path / "model", copy)["exit_code"] == 0
    assert (tmp_path / "precious").read_text() == "mine"


@given(st.text(alphabet="./a\0\\\udfff", max_size=12))
def test_a_safe_name_stays_in_its_folder(name: str) -> None:
    if is_safe(name):
        path = os.path.normpath(os.path.join("/root/folder", name))
        assert path == f"/root/folder/{name}"
        os.fsencode(path)
