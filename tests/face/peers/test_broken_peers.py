"""Peers that lie, break or dawdle: a load is right, waits a moment, and asks none of them again."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import one_file, place_of
from servers.scripted_peer import giving, peer_that
from servers.writable import writable

import streamer
from streamer import _native
from streamer.core.peers import joining
from streamer.core.peers.asking import MOST_LATE
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(8)}
DATA = save(TENSORS)
SOON_S = 20.0  # on a busy machine; a load that waited for `stall_timeout_s` or an outage takes longer


def flipped(peer, begin, end):
    peer.head(begin, end)
    data = bytearray(DATA[begin:end])
    data[len(data) // 2] ^= 1
    peer.wfile.write(data)


def zeros(peer, begin, end):
    peer.head(begin, end)
    peer.wfile.write(bytes(end - begin))


def short(peer, begin, end):
    peer.head(begin, end)
    peer.wfile.write(DATA[begin : (begin + end) // 2])


def announced_short(peer, begin, end):
    peer.head(begin, end - 1)
    peer.wfile.write(DATA[begin : end - 1])


def another_range(peer, begin, end):
    peer.head(begin + 1, end + 1)
    peer.wfile.write(DATA[begin:end])


def endless(peer, begin, end):
    peer.send_response(206)
    peer.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(DATA)}")
    peer.end_headers()
    while not peer.server.ended.is_set():
        peer.wfile.write(bytes(1 << 16))


def silent(peer, begin, end):
    peer.server.ended.wait(60)


def silent_after_its_head(peer, begin, end):
    peer.head(begin, end)
    peer.server.ended.wait(60)


def dripping(peer, begin, end):
    peer.head(begin, end)
    for position in range(begin, end):
        peer.wfile.write(DATA[position : position + 1])
        if peer.server.ended.wait(0.01):
            return


def gone(peer, begin, end):
    peer.head(begin, end, 404, 0)


def failing(peer, begin, end):
    peer.head(begin, end, 503, 0)


def unauthorized(peer, begin, end):
    peer.head(begin, end, 401, 0)


def redirecting(peer, begin, end):
    peer.send_response(302)
    peer.send_header("Location", "http://127.0.0.1:1/")
    peer.send_header("Content-Length", "0")
    peer.end_headers()


def no_http(peer, begin, end):
    peer.wfile.write(b"\x00\x01\x02" * 1000)


GIVING = [
    *(flipped, zeros, short, announced_short, another_range, endless, silent, silent_after_its_head, dripping, gone),
    *(failing, unauthorized, redirecting, no_http),
]


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


def load(storage, options, **how):
    uri, storage_options = place_of("s3", storage)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options, **how) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    return stream.report


@pytest.mark.parametrize("give", GIVING)
def test_what_a_broken_peer_gives_is_read_from_the_storage_at_once(give, tmp_path):
    with one_file(data=DATA) as storage, peer_that(give, DATA) as peer:
        options = streamer.Options(cache_dir=tmp_path / "own", peers=[peer.address])
        report = load(storage, options)
        assert peer.given > 0
        assert report.peer_bytes == {} or give in (flipped,)
        assert (report.outages, report.retries) == (0, 0)
        assert report.seconds < SOON_S
        given = peer.given
        report = load(storage, streamer.Options(cache_dir=tmp_path / "own"))  # what is kept is right, too
        assert peer.given == given
        assert report.cached_bytes == report.bytes


def test_a_peer_that_lies_about_its_checksums_is_not_believed(tmp_path):
    def lying(data):
        return _native.crc("crc32c", bytes(data)) ^ 1

    with one_file(data=DATA) as storage, peer_that(giving, DATA, crc_of=lying) as peer:
        assert load(storage, streamer.Options(cache_dir=tmp_path, peers=[peer.address])).peer_bytes == {}


def test_peers_that_disagree_are_left_out(tmp_path):
    def lying(data):
        return _native.crc("crc32c", bytes(data)) ^ 1

    with one_file(data=DATA) as storage, peer_that(flipped, DATA) as one, peer_that(flipped, DATA, lying) as other:
        load(storage, streamer.Options(cache_dir=tmp_path, peers=[one.address, other.address]))
        assert one.given == other.given == 0


@pytest.mark.parametrize(
    "crc_of", [lambda _: "1", lambda _: -1, lambda _: 1 << 32, lambda _: 1.5, lambda _: [1], lambda _: True]
)
def test_an_answer_that_is_none_is_left_out(crc_of, tmp_path):
    with one_file(data=DATA) as storage, peer_that(flipped, DATA, crc_of=crc_of) as peer:
        load(storage, streamer.Options(cache_dir=tmp_path, peers=[peer.address]))
        assert peer.given == 0


def test_a_peer_that_is_killed_in_the_middle_is_replaced_by_the_storage(tmp_path):
    with one_file(data=DATA) as storage:
        uri, storage_options = place_of("s3", storage)
        folder = tmp_path / "0"
        options = streamer.Options(cache_dir=folder)
        streamer.load(uri, framework="np", storage_options=storage_options, options=options)
        assert _native.finish_cache_writes(30)
        peer = PeerServer(str(folder), "127.0.0.1", 0, TOKEN, max_bytes_per_second=8_000_000)
        options = streamer.Options(cache_dir=tmp_path / "own", peers=[f"127.0.0.1:{peer.port}"])
        with contextlib.closing(peer):
            killer = threading.Timer(0.5, peer.close)
            killer.start()
            report = load(storage, options)
            killer.join()
        assert sum(report.peer_bytes.values()) < report.bytes
        assert (report.outages, report.retries) == (0, 0)


def test_a_broken_peer_does_not_cost_what_the_others_give(tmp_path):
    with one_file(data=DATA) as storage, peer_that(silent, DATA) as broken:
        uri, storage_options = place_of("s3", storage)
        options = streamer.Options(cache_dir=tmp_path / "0")
        streamer.load(uri, framework="np", storage_options=storage_options, options=options)
        assert _native.finish_cache_writes(30)
        with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as right:
            address = f"127.0.0.1:{right.port}"
            report = load(storage, streamer.Options(cache_dir=tmp_path / "own", peers=[address, broken.address]))
        assert set(report.peer_bytes) == {address}
        assert report.bytes > report.peer_bytes[address] > 0


def endless_words(peer):
    peer.send_response(200)
    peer.end_headers()
    while not peer.server.ended.is_set():
        peer.wfile.write(b" " * (1 << 16))
        peer.server.ended.wait(0.01)


def words_one_by_one(peer):
    peer.send_response(200)
    peer.send_header("Content-Length", "1000000")
    peer.end_headers()
    while not peer.server.ended.wait(0.1):
        peer.wfile.write(b" ")


def headers_one_by_one(peer):
    peer.send_response(200)
    peer.flush_headers()
    while not peer.server.ended.wait(0.1):
        peer.wfile.write(b"X-More: 1\r\n")


@pytest.mark.parametrize("say", [endless_words, words_one_by_one, headers_one_by_one, lambda _: None])
def test_a_peer_that_never_ends_its_answer_leaves_no_thread_and_gives_nothing(say, tmp_path):
    with one_file(data=DATA) as storage, peer_that(giving, DATA) as peer:
        peer.say = say
        report = load(storage, streamer.Options(cache_dir=tmp_path, peers=[peer.address]))
        assert (report.peer_bytes, peer.given) == ({}, 0)
        assert 1 <= peer.asked <= MOST_LATE
        for thread in threading.enumerate():
            if thread.name == "streamer-ask":
                thread.join(SOON_S)
                assert not thread.is_alive()


def test_a_peer_with_an_older_version_is_left_out(tmp_path):
    older = save({name: tensor + 1 for name, tensor in TENSORS.items()})
    with writable("s3") as storage:
        place = {"framework": "np", "storage_options": storage.options()}
        storage.objects["bkt/model.safetensors"] = older, {"ETag": '"1"'}
        options = streamer.Options(cache_dir=tmp_path / "0")
        streamer.load(storage.uri("model.safetensors"), options=options, **place)
        assert _native.finish_cache_writes(30)
        storage.objects["bkt/model.safetensors"] = DATA, {"ETag": '"2"'}
        with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as stale:
            options = streamer.Options(cache_dir=tmp_path / "own", peers=[f"127.0.0.1:{stale.port}"])
            with streamer.stream(storage.uri("model.safetensors"), options=options, **place) as stream:
                tensors = dict(stream)
        assert stream.report.peer_bytes == {}
        assert all(np.array_equal(tensors[name], tensor) for name, tensor in TENSORS.items())
