"""A server that sends a letter at a time keeps nobody: headers and bodies are complete in time, or given up."""

from __future__ import annotations

import re
import time

import pytest
from each_row import each_row
from servers.places import PLACES
from servers.raw_tcp import Speaker, repeating, speaking
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options, TransferTimeoutError
from streamer.backends.client import exchange
from streamer.backends.client.answer_times import answer_times
from streamer.core.options.limits import Limits

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

HEADERS_S = 0.4
QUICK = Options(connect_timeout_s=0.6, first_byte_timeout_s=HEADERS_S, block_deadline_s=0.1)
LIMIT_S = 5.0  # botocore alone pauses for seconds between its attempts

SLOW = {
    "one header without end": repeating(b"HTTP/1.1 200 OK\r\nServer: ", b"x"),
    "headers without end": repeating(b"HTTP/1.1 200 OK\r\n", b"Server: x\r\n"),
    "a status without end": repeating(b"HTTP/1.1 200 ", b"O"),
    "preliminary answers without end": repeating(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "silence": repeating(b"", b""),
}
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000000\r\n\r\n"


def failure(place: str, speaker: Speaker, options: Options = QUICK) -> tuple[TransferTimeoutError, float]:
    with speaking(speaker) as base:
        uri, storage_options = PLACES[place](base)
        began = time.monotonic()
        with pytest.raises(TransferTimeoutError) as caught:
            streamer.load(uri, storage_options=storage_options, options=options)
        return caught.value, time.monotonic() - began


@each_row(
    ("place", "name"), [*((place, "headers without end") for place in PLACES), *(("file", name) for name in SLOW)]
)
def test_headers_that_do_not_end_are_given_up_regression(place: str, name: str) -> None:
    """A web server's were waited for for a minute, those of S3 and Azure for ever."""
    error, took_s = failure(place, SLOW[name])
    assert "did not answer in time" in str(error)
    assert "raise connect_timeout_s and first_byte_timeout_s" in str(error)
    assert took_s < LIMIT_S


@pytest.mark.parametrize("place", [each for each in PLACES if each != "file"])
def test_a_body_that_does_not_end_is_given_up_regression(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.3)
    error, took_s = failure(place, repeating(PAGE, b" "))
    assert "sends its answer too slowly" in str(error)
    assert took_s < LIMIT_S


@pytest.mark.parametrize(
    ("place", "name", "given"),
    [
        ("file", "timeout", 0.3),
        ("hub", "timeout", 0.3),
        ("gcs", "requests_timeout", 0.3),
        ("azure", "read_timeout", 0.3),
        ("s3", "config_kwargs", {"read_timeout": 0.3}),
    ],
)
def test_what_the_user_says_to_the_storage_counts_more(place: str, name: str, given: object) -> None:
    with speaking(SLOW["headers without end"]) as base:
        uri, storage_options = PLACES[place](base)
        began = time.monotonic()
        options = Options(first_byte_timeout_s=600, block_deadline_s=0.1)  # the port may be one that answered before
        with pytest.raises(TransferTimeoutError):
            streamer.load(uri, storage_options={**storage_options, name: given}, options=options)
        assert time.monotonic() - began < LIMIT_S


def test_a_question_has_the_time_of_the_options_whatever_its_attempts_take() -> None:
    times = answer_times(Limits(connect_timeout_s=10, first_byte_timeout_s=30))
    assert times.left_s(0) == times.headers_s == 15
    assert times.left_s(39) == 1
    assert times.left_s(41) == 0


@pytest.mark.parametrize("place", [each for each in PLACES if each != "file"])
def test_the_error_of_a_deadline_names_a_server_that_sends_without_end(place: str) -> None:
    """It was said to have said nothing."""
    endless = repeating(PAGE, b" " * 100)
    error, _ = failure(place, endless, Options(deadline_s=3))  # on a busy machine the first bytes take a second
    assert re.search(r"has sent [0-9]+00 bytes in [0-9.]+ s, and no end of its answer", str(error))


def test_the_error_of_a_deadline_names_a_server_that_sends_no_answer() -> None:
    error, _ = failure("file", SLOW["headers without end"], Options(deadline_s=0.5))
    assert "has not answered for 0." in str(error)


def test_each_page_of_a_listing_has_its_own_time() -> None:
    pages = 8

    def script(request: Request, answer: Answer) -> None:
        server.stopping.wait(0.15)
        following = f"<NextMarker>{request.number}</NextMarker>" if request.number < pages else "<NextMarker/>"
        text = f'<?xml version="1.0"?><EnumerationResults><Blobs/>{following}</EnumerationResults>'
        answer.become(200, text.encode(), Content_Type="application/xml")

    with ScriptedServer(b"", script) as server:
        uri, storage_options = PLACES["azure"](server.url.removesuffix("/object"))
        store = streamer.plugins.open_store(
            uri, storage_options, limits=Limits(connect_timeout_s=0.2, first_byte_timeout_s=0.6)
        )
        assert store.find(store.root) == []
        assert len(server.requests) == pages + 1
