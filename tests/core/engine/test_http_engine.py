"""The HTTP engine against a server that misbehaves on request: every fault ends in right bytes or the right class."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time

import pytest
from each_row import each_row
from servers.scripted_http import ScriptedServer

from streamer import Options
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

DATA = os.urandom(1_000_003)
BLOCK = 128 << 10
PATIENT = {"block_bytes": BLOCK, "connect_timeout_s": 5.0, "first_byte_timeout_s": 10.0, "stall_timeout_s": 10.0}
BRIEF = {"block_deadline_s": 0.8}  # how long a server that fails as a whole is waited for
HASTY = {"first_byte_timeout_s": 0.3, "stall_timeout_s": 0.3}


def read_all(source, *, version="", **options):
    """Read the object as three items; give the bytes and the engine's counters."""
    size = len(DATA)
    cuts = [0, 10, size // 2, size]
    items = [Item(0, begin, end) for begin, end in itertools.pairwise(cuts)]
    plan = plan_reads(items, 0)
    session = ReadSession(
        [SourceObject("test://object", source, size, version)], plan, resolve(Options(**{**PATIENT, **options}))
    )
    parts = {}
    try:
        while indices := session.next_items():
            parts.update({index: bytes(memoryview(session.take(index))) for index in indices})
        return b"".join(parts[index] for index in sorted(parts)), session.stats()
    finally:
        session.close()


def read_from(server, **options):
    return read_all(HttpSource(server.url), **options)


def once(change):
    """A script that goes wrong for the first request only."""
    return lambda request, answer: change(answer) if request.number == 0 else None


@pytest.mark.parametrize("options", [{}, {"http_reactors": 4, "http_in_flight": 3}, {"block_bytes": 1 << 30}])
def test_every_byte_arrives_in_its_place(options):
    with ScriptedServer(DATA) as server:
        assert read_from(server, **options)[0] == DATA


def test_each_request_asks_for_identity_and_pins_the_version():
    with ScriptedServer(DATA) as server:
        read_from(server, version='"v1"')
    assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}
    assert {request.headers["if-match"] for request in server.requests} == {'"v1"'}


def test_connections_are_kept():
    with ScriptedServer(DATA) as server:
        peers = set()
        server.script = lambda request, answer: peers.add(answer.handler.client_address)
        read_from(server, http_reactors=1, http_in_flight=2)
    assert len(server.requests) > 4
    assert len(peers) <= 2


@pytest.mark.parametrize("kept", [0, 1, 1000, BLOCK - 1])
def test_a_cut_body_is_resumed_at_the_last_good_byte(kept):
    def cut(answer):
        answer.sent_bytes = kept

    with ScriptedServer(DATA, once(cut)) as server:
        data, stats = read_from(server, http_reactors=1, http_in_flight=1)
    assert data == DATA
    assert stats["retries"] == 1
    first, *others = server.requests
    assert [request.begin for request in others if request.end == first.end] == [first.begin + kept]


def test_a_busy_server_is_asked_again():
    def busy(request, answer):
        if request.number < 3:
            answer.become(500, b"<Error><Code>InternalError</Code></Error>")

    with ScriptedServer(DATA, busy) as server:
        data, stats = read_from(server)
    assert data == DATA
    assert stats["retries"] == 3


def test_giving_up_says_how_often_and_how_long():
    with (
        ScriptedServer(DATA, lambda _, answer: answer.become(500)) as server,
        pytest.raises(errors.HttpStatusError, match=r" failing for [\d.]+ s and \d+ request") as caught,
    ):
        read_from(server, **BRIEF)
    error = caught.value
    assert (error.status, error.uri) == (500, "test://object")
    assert 0.7 < error.elapsed_s < 30


def test_a_request_that_alone_fails_is_given_up_after_its_attempts():
    def fail(request, answer):
        if request.begin == BLOCK:
            answer.become(500)

    with ScriptedServer(DATA, fail) as server, pytest.raises(errors.HttpStatusError) as caught:
        read_from(server, max_attempts=2, http_reactors=1, http_in_flight=4)
    assert caught.value.attempts == 2


def test_the_last_error_names_the_first_failure_too():
    def fail(request, answer):
        if request.number == 0:
            answer.become(500, b"<Error><Code>InternalError</Code></Error>", x_amz_request_id="FIRST")
        else:
            answer.become(403, b"<Error><Code>AccessDenied</Code></Error>", x_amz_request_id="LAST")

    one = {"http_reactors": 1, "http_in_flight": 1}
    with ScriptedServer(DATA, fail) as server, pytest.raises(errors.AccessDeniedError) as caught:
        read_all(HttpSource(server.url), block_bytes=1 << 30, **one)
    assert (caught.value.attempts, caught.value.request_id) == (2, "LAST")
    assert "; at first: the server failed (HTTP 500), request FIRST" in str(caught.value)
    assert "2 attempts in" in str(caught.value)


def shorter_range(answer):
    answer.body = answer.body[:-1]
    answer.headers["Content-Length"] = str(len(answer.body))
    start, end = answer.headers["Content-Range"].removeprefix("bytes ").split("/")[0].split("-")
    answer.headers["Content-Range"] = f"bytes {start}-{int(end) - 1}/{len(DATA)}"


def other_range(answer):
    answer.headers["Content-Range"] = f"bytes 5-{5 + len(answer.body) - 1}/{len(DATA)}"


def whole_object(answer):
    answer.become(200, DATA, ETag='"v1"')


def error_under_200(answer):
    answer.become(200, b"<Error><Code>InternalError</Code></Error>", ETag='"v1"')


def compressed(answer):
    answer.headers["Content-Encoding"] = "gzip"


def without_etag(answer):
    del answer.headers["ETag"]


LIES = [shorter_range, other_range, whole_object, error_under_200, compressed, without_etag]


@each_row("lie", LIES)
def test_an_answer_that_is_not_the_range_never_reaches_a_tensor(lie):
    with ScriptedServer(DATA, lambda _, answer: lie(answer)) as server, pytest.raises(errors.RangeResponseError):
        read_from(server, version='"v1"')


@each_row("lie", LIES)
def test_a_single_wrong_answer_is_asked_again(lie):
    with ScriptedServer(DATA, once(lie)) as server:
        assert read_from(server, version='"v1"')[0] == DATA


def test_more_bytes_than_the_range_are_refused():
    def longer(_, answer):
        answer.body += b"x"
        del answer.headers["Content-Length"]
        answer.headers["Connection"] = "close"
        answer.sent_bytes = len(answer.body)

    with ScriptedServer(DATA, longer) as server, pytest.raises(errors.RangeResponseError, match="more bytes"):
        read_from(server)


@each_row(
    ("status", "body", "error"),
    [
        (404, b"<Error><Code>NoSuchKey</Code></Error>", errors.ObjectNotFoundError),
        (403, b"<Error><Code>AccessDenied</Code></Error>", errors.AccessDeniedError),
        (403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>", errors.CredentialsError),
        (401, b"", errors.AccessDeniedError),
        (412, b"", errors.ChangedError),
        (416, b"", errors.TruncatedError),
        (400, b"", errors.HttpStatusError),
    ],
)
def test_a_final_status_is_reported_at_once_with_its_facts(status, body, error):
    with ScriptedServer(DATA, lambda _, answer: answer.become(status, body, x_amz_request_id="R7")) as server:
        with pytest.raises(error) as caught:
            read_from(server, http_reactors=1, http_in_flight=1)
        assert len(server.requests) == 1
    assert (caught.value.status, caught.value.request_id) == (status, "R7")
    assert caught.value.byte_range is not None
    assert caught.value.object_size == len(DATA)


def test_a_redirect_is_refused_and_the_other_host_gets_no_request():
    with ScriptedServer(DATA) as other:
        with (
            ScriptedServer(DATA, lambda _, answer: answer.become(302, Location=other.url)) as server,
            pytest.raises(errors.RedirectError),
        ):
            read_from(server)
        assert other.requests == []


def test_an_object_replaced_between_two_requests_is_noticed():
    def replaced(request, answer):
        if request.number >= 2:
            answer.headers["ETag"] = '"v2"'

    with ScriptedServer(DATA, replaced) as server, pytest.raises(errors.ChangedError):
        read_from(server, http_reactors=1, http_in_flight=1)


def test_a_server_that_never_answers_runs_into_the_first_byte_timeout():
    with ScriptedServer(DATA) as server:
        server.script = lambda request, answer: server.stopping.wait(20)
        with pytest.raises(errors.TransferTimeoutError, match="first-byte"):
            read_from(server, max_attempts=1, **HASTY)
        server.stopping.set()


def test_a_transfer_that_stalls_is_resumed_elsewhere():
    with ScriptedServer(DATA) as server:

        def stall(request, answer):
            if request.number == 0:
                answer.handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
                for name, value in answer.headers.items():
                    answer.handler.wfile.write(f"{name}: {value}\r\n".encode())
                answer.handler.wfile.write(b"\r\n" + answer.body[:5000])
                server.stopping.wait(20)

        server.script = stall
        data, stats = read_from(server, **HASTY)
        server.stopping.set()
    assert data == DATA
    assert stats["retries"] >= 1  # a busy machine may stall others too


def test_a_late_answer_has_not_stalled_yet_regression():
    def late(request, answer):
        if request.number == 0:
            write, waits = answer.handler.wfile.write, iter([1.6, 0.3])  # before the head, before the body

            def write_late(data):
                time.sleep(next(waits, 0))
                return write(data)

            answer.handler.wfile.write = write_late

    with ScriptedServer(DATA, late) as server:
        data, stats = read_from(server, first_byte_timeout_s=10.0, stall_timeout_s=1.5, hedge_percent=0)
    assert data == DATA
    assert stats["retries"] == 0


def test_a_refused_connection_names_the_way_out():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        source = HttpSource(f"http://127.0.0.1:{unused.getsockname()[1]}/object")
    with pytest.raises(errors.ConnectError, match="Check the endpoint"):
        read_all(source, max_attempts=2)


def test_an_unknown_authority_is_refused_and_the_right_one_accepted(tmp_path):
    with ScriptedServer(DATA, with_tls=True) as server:
        with pytest.raises(errors.TlsError, match="certificate"):
            read_from(server)
        ca_file = tmp_path / "ca.pem"
        server.authority.cert_pem.write_to_path(str(ca_file))
        assert read_all(HttpSource(server.url, ca_file=str(ca_file)))[0] == DATA


@pytest.mark.parametrize("way", ["source", "http_proxy", "HTTP_PROXY"])
def test_requests_go_to_the_proxy_instead_of_the_host(monkeypatch, way):
    with ScriptedServer(DATA) as proxy:
        address = proxy.url.removesuffix("/object")
        if way != "source":
            monkeypatch.setenv(way, address)
        source = HttpSource("http://storage.invalid/object", proxy=address if way == "source" else None)
        assert read_all(source)[0] == DATA
    assert {request.path for request in proxy.requests} == {"http://storage.invalid/object"}


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_host_in_no_proxy_is_asked_directly(monkeypatch, name):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ScriptedServer(DATA) as server:
        assert read_from(server)[0] == DATA


def test_a_proxy_that_a_web_servers_client_names_is_not_used(monkeypatch):
    """A CGI program gets the header ``Proxy`` of a request as HTTP_PROXY."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("REQUEST_METHOD", "GET")
    with ScriptedServer(DATA) as server:
        assert read_from(server)[0] == DATA


def test_an_expired_signature_is_renewed_and_the_block_requested_again():
    def expire(request, answer):
        if "signature=old" in request.path:
            answer.become(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")

    with ScriptedServer(DATA, expire) as server:
        fresh = HttpSource(server.url + "?signature=new")
        data, stats = read_all(HttpSource(server.url + "?signature=old", refresh=lambda: fresh))
    assert data == DATA
    assert stats["credential_refreshes"] == 1


def test_a_signature_is_renewed_before_it_expires():
    with ScriptedServer(DATA) as server:
        fresh = HttpSource(server.url + "?signature=new")
        past = HttpSource(server.url + "?signature=old", refresh=lambda: fresh, expires_at_s=time.time() - 1)
        data, stats = read_all(past)
    assert data == DATA
    assert (stats["credential_refreshes"], stats["retries"]) == (1, 0)
    assert {request.path for request in server.requests} == {"/object?signature=new"}


def test_an_expired_signature_that_cannot_be_renewed_is_final():
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    with (
        ScriptedServer(DATA, lambda _, answer: answer.become(400, body)) as server,
        pytest.raises(errors.CredentialsError),
    ):
        read_from(server)


def test_a_renewal_that_fails_ends_the_load_with_its_own_error():
    def refuse():
        raise errors.CredentialsError("no more credentials")

    with ScriptedServer(DATA) as server, pytest.raises(errors.CredentialsError, match="no more"):
        read_all(HttpSource(server.url, refresh=refuse, expires_at_s=time.time() - 1))


def test_the_version_that_the_source_names_is_pinned_from_the_start():
    with ScriptedServer(DATA) as server, pytest.raises(errors.ChangedError):
        read_all(HttpSource(server.url, version='"another"', version_header="ETag"))


def test_a_deadline_that_passes_in_an_outage_names_what_the_server_answered():
    def refused(request, answer):
        if request.number > 0:  # it answered before, so it is waited for
            answer.become(503, b"<Error><Code>SlowDown</Code></Error>")

    with ScriptedServer(DATA, refused) as server, pytest.raises(errors.TransferTimeoutError) as caught:
        read_from(server, deadline_s=1.0, http_reactors=1, http_in_flight=1)
    assert re.search(r"has been failing for [\d.]+ s, at last with: .*HTTP 503", str(caught.value))
