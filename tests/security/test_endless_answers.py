"""A server whose answers, pages or listings never end takes neither memory nor time; each knob of it is an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from servers.hostile import Poured, pour
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options
from streamer.core.errors import StorageError

pytestmark = pytest.mark.server

DATA = bytes(range(256)) * 16
BODY_BYTES = 256 << 20  # of a body "without end", so that a test without its mend still ends
IN_SOCKETS_BYTES = 24 << 20  # the most that the kernel may hold between two ends
SMALL = Options(answer_bytes=1 << 20)

Endless = Callable[[Answer], None]


def serving(script: Callable[[Request, Answer], None]) -> ScriptedServer:
    return ScriptedServer(DATA, script)


def base(server: ScriptedServer) -> str:
    return server.url.removesuffix("/object")


# --- web servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, str(3 << 30)])
def test_no_more_than_the_byte_that_was_asked_for_is_read_of_a_probe(length: str | None) -> None:
    poured = Poured()

    def script(request: Request, answer: Answer) -> None:
        del answer.headers["Content-Length"]
        answer.headers |= {"Content-Length": length} if length else {}
        pour(answer, BODY_BYTES, poured)

    with serving(script) as server, pytest.raises(StorageError):
        streamer.load(f"{server.url}.safetensors", options=Options(block_deadline_s=1, max_attempts=1))
    assert poured.sent_bytes < IN_SOCKETS_BYTES


def page_of(links: list[str]) -> bytes:
    return "".join(f'<a href="{link}">x</a>' for link in links).encode()


def test_an_index_page_of_too_many_links_is_refused_before_any_is_asked_for() -> None:
    page = page_of([f"{number}.safetensors" for number in range(101)])
    with serving(lambda request, answer: answer.become(200, page, Content_Type="text/html")) as server:
        with pytest.raises(StorageError, match="more than 100 entries") as caught:
            streamer.load(f"{base(server)}/folder", options=Options(listing_entries=100))
        assert len(server.requests) == 1
    assert "raise listing_entries" in str(caught.value)


def test_names_that_cannot_be_shards_are_not_asked_for() -> None:
    page = page_of([f"{number}.txt" for number in range(500)])
    with serving(lambda request, answer: answer.become(200, page, Content_Type="text/html")) as server:
        with pytest.raises(StorageError, match="safetensors file"):
            streamer.load(f"{base(server)}/folder")
        assert len(server.requests) == 1


def test_but_a_pattern_may_mean_them() -> None:
    """What a listing does not tell is asked for when it is wanted."""
    page = page_of(["a.bin"])

    def script(request: Request, answer: Answer) -> None:
        if request.path.endswith("/"):
            answer.become(200, page, Content_Type="text/html")

    empty = (2).to_bytes(8, "little") + b"{}"
    with ScriptedServer(empty, script) as server:
        assert streamer.load(f"{base(server)}/*.bin") == {}


def test_an_endless_index_page_is_refused() -> None:
    poured = Poured()

    def script(request: Request, answer: Answer) -> None:
        answer.status, answer.headers = 200, {"Content-Type": "text/html"}
        pour(answer, BODY_BYTES, poured)

    with serving(script) as server, pytest.raises(StorageError, match="no end"):
        streamer.load(f"{base(server)}/folder")
    assert poured.sent_bytes < (16 << 20) + IN_SOCKETS_BYTES
