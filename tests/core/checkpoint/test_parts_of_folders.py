"""If a web server lacks a part of a folder, the load fails: it never returns a smaller checkpoint."""

from __future__ import annotations

import socket
import threading

import pytest
import torch
from safetensors.torch import save
from servers.raw_tcp import asked, speaking
from servers.scripted_http import Answer, Request, Script, ScriptedServer

import streamer

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
    """It was told as a wrong URL."""
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
