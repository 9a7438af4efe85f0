"""What plug-ins get for servers of their own: requests with the engine's rules, and parts of what a URL names."""

from __future__ import annotations

import pytest
from servers.scripted_http import Answer, Request, ScriptedServer

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.options.limits import Limits
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.secrets.texts import SecretTexts
from streamer.plugins import (
    HttpSource,
    HttpStatusError,
    RangeResponseError,
    StorageError,
    StreamerError,
    send_request,
)
from streamer.plugins.answers import BrokenContractError, source_in

DATA = bytes(range(256)) * 1000
SECRET = "token-of-the-tests"
URI = "acme://models"


def answering(*answers: tuple[int, bytes, dict[str, str]]) -> ScriptedServer:
    def script(request: Request, answer: Answer) -> None:
        status, body, headers = answers[min(request.number, len(answers) - 1)]
        answer.become(status, body, **headers)

    return ScriptedServer(b"", script)


def test_an_answer_of_any_status_is_returned_with_its_headers() -> None:
    for status in (200, 201, 204, 302, 401, 404, 412):
        with answering((status, b"", {"X_Name": "value"})) as server:
            answer = send_request(HttpSource(server.url), URI)
            assert (answer.status, answer.headers["x-name"]) == (status, "value")
            assert len(server.requests) == 1, "a redirect is the plug-in's to follow"


def test_a_failure_that_passes_is_tried_again_and_one_that_stays_is_an_answer() -> None:
    with answering((503, b"", {}), (429, b"", {"Retry_After": "0"}), (200, b"{}", {})) as server:
        assert send_request(HttpSource(server.url), URI).body == b"{}"
    with answering((429, b"", {"Retry_After": "77"})) as server:
        error = send_request(HttpSource(server.url), URI).error(URI)
    assert isinstance(error, HttpStatusError)
    assert (error.status, error.retry_after_s, error.uri) == (429, 77.0, URI)


def test_a_body_is_bounded() -> None:
    limits = Limits(answer_bytes=1000)
    with answering((200, b"x" * 1001, {})) as server, pytest.raises(StorageError):
        send_request(HttpSource(server.url), URI, limits=limits)


@pytest.mark.parametrize("header", ["Authorization", "x-amz-s3session-token", "Cookie"])
def test_a_login_that_a_server_repeats_is_masked(header: str) -> None:
    body = f"<Error><Code>{SECRET}</Code></Error>".encode()
    with (
        answering((400, body, {})) as server,
        pytest.raises(StreamerError) as caught,
        SecretTexts(URI).masking_errors(),
    ):
        raise send_request(HttpSource(server.url, {header: f"Bearer {SECRET}"}), URI).error(URI)
    assert SECRET not in str(caught.value)


def read(source: HttpSource, size_bytes: int, *ranges: tuple[int, int]) -> list[bytes]:
    settings = resolve(Options(block_bytes=64 << 10))
    read_bytes, _ = read_ranges([SourceObject(URI, source, size_bytes)], [(0, *each) for each in ranges], settings)
    return [bytes(each) for each in read_bytes]


@pytest.mark.parametrize("begin", [0, 1, 100_000, len(DATA) - 100_001])
def test_a_part_of_what_a_url_names_is_read_as_an_object(begin: int) -> None:
    part = DATA[begin : begin + 100_001]
    with ScriptedServer(DATA) as server:
        source = HttpSource(server.url, offset_bytes=begin, whole_bytes=len(DATA))
        assert read(source, len(part), (0, len(part)), (5, 6)) == [part, part[5:6]]
        assert all(begin <= each.begin <= each.end <= begin + len(part) for each in server.requests)


def test_an_error_in_a_part_names_the_bytes_of_the_part() -> None:
    with ScriptedServer(DATA) as server, pytest.raises(RangeResponseError) as caught:
        read(HttpSource(server.url, offset_bytes=1000, whole_bytes=len(DATA) + 1), 500, (100, 200))
    assert caught.value.byte_range == (100, 200)


@pytest.mark.parametrize(
    "part", [{"offset_bytes": -1, "whole_bytes": 10}, {"offset_bytes": 1}, {"whole_bytes": 0}, {"offset_bytes": "1"}]
)
def test_a_part_that_cannot_be_is_refused(part: dict[str, int]) -> None:
    with pytest.raises(BrokenContractError, match=r"offset_bytes|whole_bytes"):
        source_in(HttpSource("https://host/a", **part))
