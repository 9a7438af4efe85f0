"""A server that speaks something else than its storage's protocol is named at once, by what it said."""

from __future__ import annotations

import socket
import threading

import pytest
from each_row import each_row
from servers.places import PLACES
from servers.raw_tcp import asked, speaking
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import ConnectError, OptionError, RedirectError, StorageError, TlsError

pytestmark = pytest.mark.server

QUICK = streamer.Options(block_deadline_s=2, max_attempts=2)
ESCAPE = "\x1b[2J"


def refused(
    place: str, status: int, body: bytes, kind: str = "text/html", **headers: str
) -> tuple[StorageError, ScriptedServer]:
    """Load from a server with one answer to everything."""

    def script(request: Request, answer: Answer) -> None:
        answer.become(status, body, Content_Type=kind, **headers)

    with ScriptedServer(b"", script) as server:
        server.answers_head = True
        uri, storage_options = PLACES[place](server.url.removesuffix("/object"))
        with pytest.raises(StorageError) as caught:
            streamer.load(uri, storage_options=storage_options, options=QUICK)
        return caught.value, server


# --- S3 ---------------------------------------------------------------------------------------------------------------


@each_row(
    ("body", "kind", "words"),
    [
        (f"<!doctype html><html><title>Console</title>{ESCAPE}".encode(), "text/html", "'<!doctype html>"),
        (b'{"login": "please"}', "application/json", """'{"login": "please"}'"""),
        (b"<html><body/></html>", "application/xml", "'<html><body/></html>'"),
        (b'<?xml version="1.0"?>\n<!DOCTYPE html>\n<html/>', "application/xhtml+xml", "<!DOCTYPE html>"),
        (b"hello", "text/plain; charset=utf-8", "text/plain that begins 'hello'"),
        (b" ", "text/html", "with nothing"),
    ],
)
def test_an_endpoint_that_answers_with_a_page_is_named_at_once_regression(body: bytes, kind: str, words: str) -> None:
    """botocore took it for HTTP 500, and it was asked for until the block's time was over; other XML was "empty"."""
    error, server = refused("s3", 200, body, kind)
    assert f"{server.url.removesuffix('/object')} does not speak S3" in str(error)
    assert words in str(error)
    assert "endpoint_url" in str(error)
    assert ESCAPE not in str(error)
    assert len(server.requests) == 1


def test_an_answer_is_quoted_without_possible_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "FwoGZXIvYXdzEBYaCanaryCanaryCanary"
    for name, value in {
        "ACCESS_KEY_ID": "AKIACANARYCANARYCANA",
        "SECRET_ACCESS_KEY": "x",
        "SESSION_TOKEN": token,
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)

    def script(request: Request, answer: Answer) -> None:
        answer.become(200, f"token={request.headers['x-amz-security-token']}".encode(), Content_Type="text/plain")

    with ScriptedServer(b"", script) as server, pytest.raises(StorageError) as caught:
        streamer.load(
            "s3://bucket/folder",
            storage_options={"endpoint_url": server.url.removesuffix("/object")},
            options=QUICK,
        )
    assert "does not speak S3" in str(caught.value)
    assert token[:16] not in str(caught.value)


@pytest.mark.parametrize("status", [403, 404])
def test_an_error_page_is_called_one(status: int) -> None:
    assert "The answer is a web page and none of S3's" in str(refused("s3", status, b"<html>no</html>")[0])


@each_row("region", ["evil.example", "evil.example/", "a" * 70, "-a"])
@each_row("status", [301, 400])
def test_a_malformed_region_of_the_server_is_the_servers_fault_regression(region: str, status: int) -> None:
    """The caller's options were blamed."""
    body = f"<Error><Code>AuthorizationHeaderMalformed</Code><Region>{region}</Region></Error>".encode()
    error, _ = refused("s3", status, body, "application/xml", x_amz_bucket_region=region)
    assert isinstance(error, RedirectError)
    assert not isinstance(error, OptionError)
    assert f"names a region that cannot be one: '{region}'" in str(error)


def test_a_malformed_region_of_the_caller_is_a_usage_error() -> None:
    options = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "evil.example"}}
    with pytest.raises(OptionError):
        streamer.load("s3://b/k", storage_options={**options, "endpoint_url": "http://127.0.0.1:9"})


# --- other protocols --------------------------------------------------------------------------------------------------

STORAGES = [place for place in PLACES if place != "web"]


def failure(place: str, base: str) -> StorageError:
    uri, storage_options = PLACES[place](base)
    with pytest.raises(StorageError) as caught:
        streamer.load(uri, storage_options=storage_options, options=QUICK)
    return caught.value


@pytest.mark.parametrize("place", STORAGES)
def test_the_greeting_of_another_service_is_recognised_regression(place: str) -> None:
    """`The HTTP client failed with ClientResponseError`, or no connection."""

    def speaker(connection: socket.socket, stopping: threading.Event) -> None:
        connection.sendall(f"220 mail {ESCAPE}ESMTP\r\n".encode())
        asked(connection)

    with speaking(speaker) as base:
        error = failure(place, base)
    assert "something that is not HTTP: '220 mail \\x1b[2JESMTP'" in str(error)
    assert "Check host and port" in str(error)


@pytest.mark.parametrize("answer", [b"\x15\x03\x01\x00\x02\x02\x46", b"\x16\x03\x03\x00\x01\x02"])
def test_the_error_says_that_a_port_needs_tls(answer: bytes) -> None:
    def speaker(connection: socket.socket, stopping: threading.Event) -> None:
        asked(connection)
        connection.sendall(answer)

    with speaking(speaker) as base:
        assert "try https://" in str(failure("file", base))


def test_a_port_with_tls_that_closes_the_connection_suggests_https() -> None:
    with ScriptedServer(b"", with_tls=True) as server:
        error = failure("file", f"http://127.0.0.1:{server.port}")
    assert isinstance(error, ConnectError)
    assert "try https://" in str(error)


def test_a_page_about_a_port_with_tls_suggests_https() -> None:
    body = b"<center>The plain HTTP request was sent to HTTPS port</center>"
    assert "try https://" in str(refused("file", 400, body)[0])


@pytest.mark.parametrize("place", STORAGES)
def test_the_error_says_that_a_port_has_no_tls(place: str) -> None:
    with ScriptedServer(b"") as server:
        error = failure(place, f"https://127.0.0.1:{server.port}")
    assert isinstance(error, TlsError)
    assert "try http://" in str(error)


@each_row(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"O" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 99999999999999999999 OK\r\n\r\n",
        b"b'quoted'\r\n",
        b"HTTP/1.1 200 OK\r\nb'x' + b'y'\r\n\r\n",
    ],
)
@each_row("place", ["file", "azure"])
def test_whatever_is_not_http_is_an_error_of_the_storage(place: str, answer: bytes) -> None:
    def speaker(connection: socket.socket, stopping: threading.Event) -> None:
        asked(connection)
        connection.sendall(answer)

    with speaking(speaker) as base:
        assert "Client" not in str(failure(place, base))
