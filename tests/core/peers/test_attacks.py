"""Clients that attack a peer's server: none of them takes from the peers what they came for."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from streamer.core.peers import answers
from streamer.core.peers.answers import MOST_QUESTION_BYTES
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
SOON_S = 20.0  # on a busy machine


@pytest.fixture
def peer(tmp_path):
    with contextlib.closing(PeerServer(str(tmp_path), "127.0.0.1", token=TOKEN)) as server:
        yield server


def ask(peer, timeout=SOON_S):
    """Ask as a peer does; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=timeout)
    with contextlib.closing(connection):
        body = json.dumps({"objects": {"0" * 64: [[0, 10]]}})
        connection.request("POST", "/v1/held", body, {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status


def connect(peer, stack, first=b""):
    client = stack.enter_context(socket.create_connection(("127.0.0.1", peer.port), timeout=SOON_S))
    client.sendall(first)
    return client


def is_closed(client):
    """Wait until the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def test_strangers_on_all_places_make_room_for_a_peer(peer, monkeypatch):
    monkeypatch.setattr(answers, "IDLE_S", 600.0)  # none of them is closed for its silence
    with contextlib.ExitStack() as stack:
        strangers = [connect(peer, stack, b"GET / HT") for _ in range(peer.places)]
        assert ask(peer) == 200
        assert is_closed(strangers[0])


def test_more_connections_than_places_many_times_over_leave_a_peer_served(peer):
    ended = threading.Event()

    def flood():
        while not ended.is_set():
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                for _ in range(400):
                    connect(peer, stack, b"POST ")

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    answers = []
    for _ in range(5):
        with contextlib.suppress(OSError, http.client.HTTPException):  # it may be the oldest stranger itself
            answers.append(ask(peer))
    ended.set()
    for thread in threads:
        thread.join()
    assert ask(peer) == 200
    assert set(answers) <= {200}


def test_a_request_that_comes_byte_by_byte_is_given_up(peer, monkeypatch):
    monkeypatch.setattr(answers, "IDLE_S", 1.0)
    with contextlib.ExitStack() as stack:
        slow = connect(peer, stack, b"GET / HTTP/1.1\r\n")
        slow.settimeout(0.1)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < SOON_S:
                slow.sendall(b"X-Slow: 1\r\n")  # each comes long before the connection would count as silent
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1) == b"":
                        break
        assert time.monotonic() - began < SOON_S


def test_a_peer_that_has_shown_the_token_is_not_closed_for_strangers(peer, monkeypatch):
    monkeypatch.setattr(answers, "IDLE_S", 600.0)
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=SOON_S)
    with contextlib.closing(connection), contextlib.ExitStack() as stack:
        for round_number in range(2):
            connection.request("POST", "/v1/held", '{"objects": {}}', {"Authorization": f"Bearer {TOKEN}"})
            assert connection.getresponse().read()
            if round_number == 0:
                own = connection.sock
                for _ in range(peer.places + 20):
                    connect(peer, stack)
                assert ask(peer) == 200
        assert connection.sock is own


@pytest.mark.parametrize("length", [str(MOST_QUESTION_BYTES + 1), "9" * 5000, "-1", "1e3", ""])
def test_a_body_that_is_announced_too_large_or_unclear_is_not_read(peer, length):
    with contextlib.ExitStack() as stack:
        head = f"POST /v1/held HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
        client = connect(peer, stack, head.encode())
        assert client.recv(100).split()[1] in (b"411", b"413")
        assert is_closed(client)
    assert ask(peer) == 200


def test_a_huge_body_without_the_token_is_not_read(peer):
    with contextlib.ExitStack() as stack:
        client = connect(peer, stack, b"POST /v1/held HTTP/1.1\r\nContent-Length: 16000000\r\n\r\n")
        assert client.recv(100).split()[1] == b"401"
        assert is_closed(client)


def test_a_body_that_ends_early_leaves_the_peer_serving(peer):
    with contextlib.ExitStack() as stack:
        head = f"POST /v1/held HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n"
        client = connect(peer, stack, head.encode() + b'{"obj')
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100).split()[1] == b"400"
    assert ask(peer) == 200


@pytest.mark.parametrize(
    "load",
    [
        '{"name": "\\ud800", "again_s": 1, "reads": {}}',
        '{"name": "0123456789abcdef", "again_s": 1%s, "reads": {}}' % ("0" * 400),
        '{"name": "0123456789abcdef", "again_s": NaN, "reads": {}}',
        '{"name": "0123456789abcdef", "again_s": -1, "reads": {}}',
        '{"name": "0123456789abcdef", "again_s": "1", "reads": {}}',
        '{"name": "0123456789abcdef", "again_s": 1, "reads": []}',
        "[]",
    ],
)
def test_a_load_that_tells_nonsense_of_itself_is_refused(peer, load):
    body = f'{{"objects": {{}}, "load": {load}}}'
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=SOON_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/held", body, {"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 400
    assert ask(peer) == 200


def test_what_other_machines_say_that_they_read_is_not_believed_and_what_is_told_is_bounded():
    name = "5f" * 32
    with contextlib.closing(PeerServer("/nowhere", "127.0.0.1", token=TOKEN)) as server:
        for number in range(3):
            reads = {name: [[begin, begin + 1] for begin in range(number * 10**6, number * 10**6 + 400_000)]}
            load = {"name": f"{number:016x}", "again_s": 60, "reads": reads}
            server.held({"objects": {}, "load": load}, is_local=number < 2)
        names, claims = server.loads.of([name], None)
        assert names == {f"{number:016x}" for number in range(3)}
        assert [len(each[name]) for each in claims] == [400_000, 0, 0]


@pytest.mark.parametrize("head", [b"PUT / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 70_000, b"nonsense\r\n\r\n"])
def test_a_stranger_gets_no_page_of_the_library(peer, head):
    with contextlib.ExitStack() as stack:
        client, said = connect(peer, stack, head), b""
        with contextlib.suppress(ConnectionError):
            while more := client.recv(1 << 16):
                said += more
    assert b"<" not in said
    assert len(said) < 200
