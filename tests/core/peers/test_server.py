"""The server that a peer is: what it gives, and what it never says without the token."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import one_file, place_of

import streamer
from streamer import _native
from streamer.core.cache.folder import CacheFolder
from streamer.core.engine.plan import Missing
from streamer.core.errors import OptionError, StorageError
from streamer.core.peers.answers import MOST_QUESTION_BYTES
from streamer.core.peers.asking import Peers
from streamer.core.peers.names import token_of, wire_name
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
DATA = save({"weight": np.arange(500_000, dtype=np.float32)})
SIZE, BEGIN = len(DATA), len(DATA) - 2_000_000  # BEGIN: the offset of the tensor


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that holds one whole object, and its digest."""
    path = str(tmp_path_factory.mktemp("peer") / "cache")
    with one_file(data=DATA) as server:
        uri, storage_options = place_of("s3", server)
        streamer.load(uri, framework="np", storage_options=storage_options, options=streamer.Options(cache_dir=path))
    assert _native.finish_cache_writes(30)
    (digest,) = CacheFolder.opened(path).digests()
    return path, wire_name(digest, TOKEN)


@pytest.fixture
def peer(cache):
    with contextlib.closing(PeerServer(cache[0], "127.0.0.1", token=TOKEN)) as server:
        yield server


def ask(peer, method, path, body=None, token=TOKEN, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=30)
    with contextlib.closing(connection):
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body, sent | {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def held(peer, name, *ranges):
    status, body, _ = ask(peer, "POST", "/v1/held", json.dumps({"objects": {name: ranges}}))
    assert status == 200
    return json.loads(body)["objects"][name]


def test_a_peer_says_what_it_holds_and_gives_it(peer, cache):
    name, size = cache[1], SIZE
    assert held(peer, name, [BEGIN, size], [100_000, 200_000], [BEGIN, size + 1], [5, 5]) == [
        _native.crc("crc32c", DATA[BEGIN:]),
        _native.crc("crc32c", DATA[100_000:200_000]),
        None,
        None,
    ]
    status, body, headers = ask(peer, "GET", f"/v1/objects/{name}", Range="bytes=1000-99999")
    assert (status, headers["Content-Range"]) == (206, f"bytes 1000-99999/{size}")
    assert body == DATA[1000:100_000]
    peer.close()  # which waits until the thread has counted
    assert peer.sent_bytes == len(body)


def test_an_object_that_is_not_there_is_not_held(peer):
    assert held(peer, "0" * 64, [0, 10]) == [None]
    assert ask(peer, "GET", f"/v1/objects/{'0' * 64}", Range="bytes=0-9")[0] == 404


@pytest.mark.parametrize("token", ["", "another-token-of-tests", TOKEN[:-1], TOKEN + "x", "é"])
def test_without_the_token_an_object_that_is_there_looks_like_one_that_is_not(peer, cache, token):
    answers = [
        ask(peer, method, path, body, token, Range="bytes=0-9")
        for name in (cache[1], "0" * 64)
        for method, path, body in (
            ("GET", f"/v1/objects/{name}", None),
            ("POST", "/v1/held", json.dumps({"objects": {name: [[0, 10]]}})),
        )
    ]
    assert {(status, body) for status, body, _ in answers} == {(401, b"")}


def test_names_are_not_those_of_another_token(peer, cache):
    (digest,) = CacheFolder.opened(cache[0]).digests()
    assert held(peer, wire_name(digest, TOKEN + "2"), [0, 10]) == [None]
    assert held(peer, digest, [0, 10]) == [None]


@pytest.mark.parametrize("path", ["/", "/v1/objects/", "/v1/objects/../salt", "/v1/objects/%2e%2e/salt", "/v2/held"])
def test_no_other_path_is_served(peer, path):
    assert ask(peer, "GET", path, Range="bytes=0-9")[0] == 404
    assert ask(peer, "POST", path, "{}")[0] == 404


@pytest.mark.parametrize("asked", ["", "bytes=5-", "bytes=-5", "bytes=9-5", "bytes=0-99999999999", "bytes=0-1,3-4"])
def test_a_range_that_is_none_is_refused(peer, cache, asked):
    assert ask(peer, "GET", f"/v1/objects/{cache[1]}", Range=asked)[0] == 416


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"objects": 1}', '{"objects": {"a": [[1]]}}', '{"objects": {"a": [["1", 2]]}}', "[" * 5000]
)
def test_a_question_that_is_none_is_refused_and_the_peer_serves_on(peer, cache, body):
    assert ask(peer, "POST", "/v1/held", body)[0] == 400
    assert held(peer, cache[1], [BEGIN, SIZE]) != [None]


def test_a_question_without_end_is_refused(peer):
    assert ask(peer, "POST", "/v1/held", "", Content_Length=str(MOST_QUESTION_BYTES + 1))[0] == 413


def test_an_object_that_is_cached_later_is_found(tmp_path):
    path = str(tmp_path / "later")
    with contextlib.closing(PeerServer(path, "127.0.0.1", token=TOKEN)) as peer, one_file(data=DATA) as server:
        assert held(peer, "0" * 64, [0, 10]) == [None]
        uri, storage_options = place_of("s3", server)
        options = streamer.Options(cache_dir=path)
        streamer.load(uri, framework="np", storage_options=storage_options, options=options)
        assert _native.finish_cache_writes(30)
        (digest,) = CacheFolder.opened(path).digests()
        deadline = time.monotonic() + 30
        while held(peer, wire_name(digest, TOKEN), [BEGIN, SIZE]) == [None]:
            assert time.monotonic() < deadline


def test_the_rate_is_that_of_all_answers_together(cache):
    with contextlib.closing(PeerServer(cache[0], "127.0.0.1", token=TOKEN, max_bytes_per_second=2_000_000)) as peer:
        began = time.monotonic()
        for _ in range(2):
            assert ask(peer, "GET", f"/v1/objects/{cache[1]}", Range=f"bytes=0-{len(DATA) - 1}")[1] == DATA
        assert time.monotonic() - began > 2 * len(DATA) / 2_000_000 * 0.8


def test_close_joins_every_thread_although_clients_hang(cache):
    peer = PeerServer(cache[0], token=TOKEN)
    with socket.create_connection(("127.0.0.1", peer.port)) as silent:
        silent.sendall(b"GET ")
        assert held(peer, cache[1], [BEGIN, SIZE]) != [None]
        peer.close()
    peer.close()
    assert not [each.name for each in threading.enumerate() if each.name in ("streamer-peers", "streamer-serve")]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_a_peer_listens_on_ipv6_too(cache):
    with contextlib.closing(PeerServer(cache[0], token=TOKEN)) as peer:
        assert held(peer, cache[1], [BEGIN, SIZE]) != [None]
        socket.create_connection(("::1", peer.port)).close()


def test_a_port_that_is_taken_is_an_error_with_a_hint(peer, cache):
    with pytest.raises(StorageError, match="no peer can listen on"):
        PeerServer(cache[0], "127.0.0.1", peer.port, TOKEN)


def test_the_token_comes_from_a_file_or_the_environment_and_is_read_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    assert token_of() == TOKEN
    file = tmp_path / "token"
    file.write_text("another-token-of-tests\n")
    assert token_of(str(file)) == "another-token-of-tests"
    monkeypatch.setenv("STREAMER_PEERS_TOKEN_FILE", str(file))
    file.write_text(TOKEN + "2")
    assert token_of() == TOKEN + "2"


@pytest.mark.parametrize("token", ["", "short", "with spaces in between", "é" * 20, "tab\tand\nline-after-line"])
def test_a_token_that_is_none_is_refused_and_not_shown(monkeypatch, token):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", token)
    with pytest.raises(OptionError, match="peers need a token") as failure:
        token_of()
    assert not token or token not in str(failure.value)


def test_a_token_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        token_of(str(tmp_path / "none"))


def test_a_server_that_another_load_closes_still_tells_its_port_regression(tmp_path):
    """A load that joined the peers meanwhile failed with EBADF."""
    peer = PeerServer(str(tmp_path), "127.0.0.1", token=TOKEN)
    port = peer.port
    peer.close()
    assert (peer.port, peer.address) == (port, f"127.0.0.1:{port}")


def test_another_token_is_that_of_clients_and_names_from_now_on(cache):
    (digest,) = CacheFolder.opened(cache[0]).digests()
    with contextlib.closing(PeerServer(cache[0], "127.0.0.1", token=TOKEN)) as peer:
        assert held(peer, cache[1], [BEGIN, SIZE]) != [None]
        peer.use_token(TOKEN + "2")
        body = json.dumps({"objects": {wire_name(digest, TOKEN + "2"): [[BEGIN, SIZE]]}})
        assert ask(peer, "POST", "/v1/held", body)[0] == 401
        status, answer, _ = ask(peer, "POST", "/v1/held", body, token=TOKEN + "2")
        assert (status, b"null" in answer) == (200, False)


def test_a_load_that_never_starts_is_not_told_to_others_regression(tmp_path):
    """Others waited for its part until its process ended."""
    with contextlib.closing(PeerServer(str(tmp_path), "127.0.0.1", token=TOKEN)) as server:
        peers = Peers(["127.0.0.1:1"], TOKEN, server)
        missing = [Missing(0, 0, "5f", 0, 1 << 20)]
        assert peers.guide(missing, in_item_order=False) is not None
        names = peers.names_of(missing).values()
        assert server.held({"objects": {name: [[0, 1 << 20]] for name in names}})["loads"] == []
