"""Connections of the engine outlive a load: the next load, and each read of an open checkpoint, pays no handshake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from servers.nginx import NginxServer
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer


@pytest.fixture
def proxy(http_server: NginxServer) -> Iterator[TcpProxy]:
    """The network before a web server; what the process keeps of others is closed."""
    streamer.release()
    with TcpProxy(http_server.http_port, http_requests) as proxy:
        yield proxy
    streamer.release()


@pytest.fixture
def uri(proxy: TcpProxy, checkpoint: Path) -> str:
    """A shard behind it."""
    return f"http://127.0.0.1:{proxy.port}/open/model/{min(checkpoint.glob('*.safetensors')).name}"


def test_loads_that_follow_make_no_connection(s3_server: SeaweedServer, s3_checkpoint: str) -> None:
    streamer.release()
    with TcpProxy(s3_server.port, http_requests) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        first = streamer.load(s3_checkpoint, storage_options=options)
        # A load that has more requests under way at a time than those before it needs a few connections more.
        for _ in range(10):
            connections, requests = proxy.connections, proxy.requests
            following = streamer.load(s3_checkpoint, storage_options=options)
            if proxy.connections == connections:
                break
        assert proxy.connections == connections
        assert proxy.requests > requests
    assert all(torch.equal(first[name], following[name]) for name in first)


def test_reads_of_an_open_checkpoint_share_one_connection(uri: str, proxy: TcpProxy) -> None:
    with streamer.open(uri) as checkpoint:
        names = list(checkpoint)
        checkpoint.get_tensor(names[0])
        connections, requests = proxy.connections, proxy.requests
        for name in names:
            checkpoint.get_tensor(name)
    assert proxy.connections == connections
    assert proxy.requests >= requests + len(names)


def test_release_closes_them_and_the_next_load_connects_again(uri: str, proxy: TcpProxy) -> None:
    streamer.load(uri)
    connections = proxy.connections
    streamer.release()
    streamer.load(uri)
    assert proxy.connections > connections


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(uri: str, proxy: TcpProxy) -> None:
    expected = streamer.load(uri)
    proxy.cut()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in streamer.load(uri).items())


def test_after_a_failed_load_the_next_one_waits_for_nothing(uri: str, proxy: TcpProxy) -> None:
    expected = streamer.load(uri)
    proxy.leave()
    with pytest.raises(streamer.StorageError):
        streamer.load(uri, options=streamer.Options(block_deadline_s=0.5))
    proxy.come_back()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in streamer.load(uri).items())


def test_a_forked_child_makes_connections_of_its_own_and_leaves_its_parents_alone(
    uri: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMER_HEDGE_PERCENT", "0")  # a hedge of a slow answer makes a connection
    with streamer.open(uri, framework="np") as checkpoint:
        expected = checkpoint.get_tensors()
        connections = proxy.connections
        child = os.fork()
        if child == 0:
            loaded = streamer.load(uri, framework="np")
            os._exit(0 if all((loaded[name] == expected[name]).all() for name in expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        proxy.settle()
        assert proxy.connections > connections
        made = []
        for _ in range(3):  # on a busy machine, the server may have closed idle connections meanwhile
            connections = proxy.connections
            for name in expected:
                checkpoint.get_tensor(name)
            made.append(proxy.connections - connections)
        assert 0 in made
