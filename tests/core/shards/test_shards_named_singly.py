"""Which URIs one store has together."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
import torch
from each_row import each_row
from safetensors.torch import save, save_file
from servers.raw_tcp import asked, speaking
from servers.scripted_http import Answer, Request, Script, ScriptedServer

import streamer
from streamer.core.shards.search import are_of_one_folder


@each_row("folder", ["/models/llama", "s3://bucket", "s3a://bucket/a/b", "gs://b/x y", "az://c", ""])
def test_shards_of_one_folder_are_together(folder):
    assert are_of_one_folder(f"{folder}/a.safetensors", f"{folder}/model-00002-of-00003.safetensors")


@each_row(
    "other",
    [
        "s3://bucket/other/b.safetensors",
        "s3://else/folder/b.safetensors",
        "gs://bucket/folder/b.safetensors",
        "s3://bucket/folder/b.safetensors?versionId=7",
        "s3://bucket/folder/*.safetensors",
        "s3://bucket/folder/b%20c.safetensors",
        "s3://bucket/folder/b.safetensors#1",
        "s3://bucket/folder/..safetensors",
        "s3://bucket/folder/model.safetensors.index.json",
        "s3://bucket/folder/",
        "s3://bucket/folder/sub.folder",
    ],
)
def test_what_means_more_than_its_name_is_by_itself(other):
    assert not are_of_one_folder("s3://bucket/folder/a.safetensors", other)


def test_a_relative_folder_is_one_folder():
    assert are_of_one_folder("models/a.safetensors", "models/b.safetensors")


@pytest.mark.parametrize(
    "folder", ["https://host/x", "hf://org/model", "nfs://server/x", "simplecache::s3://b", "x:models"]
)
def test_schemes_whose_stores_are_of_one_url_are_by_themselves(folder):
    assert not are_of_one_folder(f"{folder}/a.safetensors", f"{folder}/b.safetensors")


# --- several checkpoints in one load: an index decides between the shards of its own one, and not between chec ---


def checkpoint(folder: Path, *, has_index: bool, **values: float) -> str:
    """Write one shard for each of the tensors."""
    folder.mkdir()
    shards = {name: f"{name}.safetensors" for name in values}
    for name, value in values.items():
        save_file({name: torch.full((4,), value)}, folder / shards[name])
    if has_index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return str(folder)


@pytest.mark.parametrize("second_has_index", [True, False])
@pytest.mark.parametrize("first_has_index", [True, False])
def test_a_tensor_that_two_checkpoints_hold_is_refused_regression(tmp_path, first_has_index, second_has_index):
    """The last index won, or the only one, without a word."""
    first = checkpoint(tmp_path / "first", has_index=first_has_index, x=1, a=1)
    second = checkpoint(tmp_path / "second", has_index=second_has_index, x=2, b=2)
    for uris in ([first, second], [second, first]):
        with pytest.raises(streamer.FormatError, match="'x' is in two shards"):
            streamer.load(uris)


def test_checkpoints_of_other_tensors_are_joined(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, a=1)
    second = checkpoint(tmp_path / "second", has_index=True, b=2)
    loaded = streamer.load([first, second])
    assert {name: tensor[0].item() for name, tensor in loaded.items()} == {"a": 1, "b": 2}


def test_an_index_decides_between_its_own_shards_beside_another_checkpoint(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, x=1, y=1)
    save_file({"x": torch.full((4,), 9.0), "y": torch.full((4,), 1.0)}, tmp_path / "first/y.safetensors")  # a stale x
    second = checkpoint(tmp_path / "second", has_index=False, b=2)
    loaded = streamer.load([second, first])
    assert {name: tensor[0].item() for name, tensor in loaded.items()} == {"x": 1, "y": 1, "b": 2}


def test_a_shard_beside_the_index_that_names_it_is_refused(tmp_path):
    first = checkpoint(tmp_path / "first", has_index=True, x=1)
    with pytest.raises(streamer.FormatError, match="the same shard is named twice"):
        streamer.load([first, f"{first}/x.safetensors"])


# --- if a web server lacks a part of a folder, the load fails: it never returns a smaller checkpoint ----------------

SHARDS = {f"/folder/{name}.safetensors": save({name: torch.ones(10)}) for name in "ab"}
PAGE = b"<html><a href='a.safetensors'>a</a><a href='b.safetensors'>b</a></html>"


def folder(change: Script) -> ScriptedServer:
    """Serve the page and the shards; `change` may alter each answer."""

    def script(request: Request, answer: Answer) -> None:
        if request.path == "/folder/":
            answer.become(200, PAGE, Content_Type="text/html")
        elif request.path == "/folder":  # is it a file?
            answer.become(404)
        else:
            whole = SHARDS[request.path]
            body = whole[request.begin : request.end] or whole
            total = f"bytes {request.begin}-{request.begin + len(body) - 1}/{len(whole)}"
            answer.become(206, body, ETag='"v1"', Content_Range=total)
        change(request, answer)

    return ScriptedServer(b"", script)


def loaded(server: ScriptedServer) -> set[str]:
    return set(streamer.load(server.url.replace("/object", "/folder")))


@pytest.mark.parametrize("status", [404, 410])
def test_an_absent_linked_shard_is_an_error_and_no_smaller_checkpoint_regression(status: int) -> None:
    def lose(request: Request, answer: Answer) -> None:
        if request.path == "/folder/b.safetensors":
            answer.become(status)

    with folder(lose) as server, pytest.raises(streamer.ObjectNotFoundError, match=r"b\.safetensors"):
        loaded(server)


def test_a_linked_shard_that_was_not_there_at_first_is_loaded_regression() -> None:
    seen: list[str] = []

    def lose_once(request: Request, answer: Answer) -> None:
        if request.path == "/folder/b.safetensors" and not seen:
            seen.append(request.path)
            answer.become(404)

    with folder(lose_once) as server:
        assert loaded(server) == {"a", "b"}


def test_a_part_of_the_page_is_not_the_page_regression() -> None:
    def cut(request: Request, answer: Answer) -> None:
        if request.path == "/folder/":
            answer.become(206, PAGE[:40], Content_Type="text/html", Content_Range=f"bytes 0-39/{len(PAGE)}")

    with folder(cut) as server, pytest.raises(streamer.StorageError, match="a part of the folder's index page"):
        loaded(server)


def test_a_compressed_page_is_reported_as_compressed_regression() -> None:
    def compress(request: Request, answer: Answer) -> None:
        if request.path == "/folder/":
            answer.headers["Content-Encoding"] = "gzip"

    with folder(compress) as server, pytest.raises(streamer.StorageError, match="compresses its answer"):
        loaded(server)


def test_a_page_of_two_lengths_is_refused_regression() -> None:
    def speaker(connection: socket.socket, _: threading.Event) -> None:
        asked(connection)
        head = f"Content-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nContent-Length: 40\r\n\r\n"
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head.encode() + PAGE[:40])

    with speaking(speaker) as url, pytest.raises(streamer.StorageError, match="two lengths"):
        streamer.load(f"{url}/folder")


def test_what_an_answer_leaves_on_its_connection_is_met_on_another_regression() -> None:
    """It was reported as a wrong URL."""
    late = threading.Event()

    def leave(request: Request, answer: Answer) -> None:
        if request.number == 0:
            connection = answer.handler.connection

            def send_more() -> None:
                late.wait(10)
                connection.sendall(b"\r\n")

            threading.Thread(target=send_more, daemon=True).start()
        elif request.number == 1:
            late.set()

    with folder(leave) as server:
        assert loaded(server) == {"a", "b"}
