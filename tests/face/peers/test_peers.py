"""Loads that read from peers: the storage gives what no peer holds, and no peer is believed."""

from __future__ import annotations

import contextlib
import socket

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import is_block, one_file, place_of

import streamer
from streamer import _native
from streamer.core.errors import OptionError
from streamer.core.peers import joining
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(8)}
DATA = save(TENSORS)


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


@pytest.fixture
def storage():
    with one_file(data=DATA) as server:
        yield server


def load(storage, options, **how):
    uri, storage_options = place_of("s3", storage)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options, **how) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    return stream.report


def warm(storage, folder):
    load(storage, streamer.Options(cache_dir=folder))


def blocks_of(storage):
    return sum(is_block(request) for request in storage.requests)


@contextlib.contextmanager
def peers_of(*folders, token=TOKEN):
    with contextlib.ExitStack() as stack:
        servers = [PeerServer(str(each), "127.0.0.1", 0, token) for each in folders]
        yield [stack.enter_context(contextlib.closing(each)) for each in servers]


def joined(tmp_path, peers, **how):
    addresses = [f"127.0.0.1:{each.port}" for each in peers]
    return streamer.Options(cache_dir=tmp_path / "own", peers=addresses, **how)


def test_a_node_that_joins_warm_ones_reads_no_tensor_from_the_storage(storage, tmp_path):
    for number in range(2):
        warm(storage, tmp_path / str(number))
    with peers_of(tmp_path / "0", tmp_path / "1") as peers:
        before = blocks_of(storage)
        report = load(storage, joined(tmp_path, peers))
        assert blocks_of(storage) <= before + 1  # its header
        assert sum(report.peer_bytes.values()) == report.bytes
        assert set(report.peer_bytes) == {f"127.0.0.1:{each.port}" for each in peers}  # both give
        assert report.bytes_read == 0
        assert "from 2 peers" in str(report)
    assert load(storage, streamer.Options(cache_dir=tmp_path / "own")).cached_bytes == report.bytes


def test_what_a_peer_lacks_comes_from_the_storage(storage, tmp_path):
    uri, storage_options = place_of("s3", storage)
    options = streamer.Options(cache_dir=tmp_path / "0")
    names = ["layer1", "layer5"]
    streamer.load(uri, names=names, framework="np", storage_options=storage_options, options=options)
    assert _native.finish_cache_writes(30)
    with peers_of(tmp_path / "0") as peers:
        report = load(storage, joined(tmp_path, peers))
    assert 2 * 2_000_000 <= sum(report.peer_bytes.values()) < 4 * 2_000_000


def test_a_peer_without_the_object_or_another_token_costs_nothing_but_the_question(storage, tmp_path):
    warm(storage, tmp_path / "0")
    with peers_of(tmp_path / "0", token=TOKEN + "2") as strangers, peers_of(tmp_path / "none") as empty:
        report = load(storage, joined(tmp_path, [*strangers, *empty]))
    assert report.peer_bytes == {}
    assert report.is_complete


def test_a_peer_that_is_gone_is_left_out(storage, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
        gone.close()
        peers = [f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{port}"]
        report = load(storage, streamer.Options(cache_dir=tmp_path / "own", peers=peers))
    assert report.peer_bytes == {}


def test_a_load_serves_what_it_has_to_others(storage, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    load(storage, streamer.Options(cache_dir=tmp_path / "0", peers=[address]))
    (server,) = joining._servers.values()
    assert f"127.0.0.1:{server.port}" == address
    report = load(storage, streamer.Options(cache_dir=tmp_path / "1", peers=[address]))
    assert report.peer_bytes == {address: report.bytes}
    again = load(storage, streamer.Options(cache_dir=tmp_path / "0", peers=[address]))
    assert (again.cached_bytes, again.peer_bytes) == (again.bytes, {})


def test_peers_without_a_cache_or_a_token_are_an_error_that_says_what_to_do(storage, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="peers need a cache"):
        load(storage, streamer.Options(peers=["127.0.0.1:1"]))
    monkeypatch.delenv("STREAMER_PEERS_TOKEN")
    with pytest.raises(OptionError, match="peers need a token"):
        load(storage, streamer.Options(cache_dir=tmp_path, peers=["127.0.0.1:1"]))


def test_peers_give_what_an_nfs_server_would(nfs_checkpoint, checkpoint, tmp_path):
    expected = streamer.load(checkpoint, framework="np")
    streamer.load(nfs_checkpoint, framework="np", options=streamer.Options(cache_dir=tmp_path / "0"))
    assert _native.finish_cache_writes(30)
    with peers_of(tmp_path / "0") as peers:
        options = joined(tmp_path, peers, prefer="egress")
        with streamer.stream(nfs_checkpoint, framework="np", options=options) as stream:
            tensors = dict(stream)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    assert sum(stream.report.peer_bytes.values()) > 0
    assert _native.finish_cache_writes(30)
