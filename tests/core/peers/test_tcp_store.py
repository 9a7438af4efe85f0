"""Peers that find each other by a `TCPStore`: each announces itself, and no load waits for a host that is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import one_file, place_of
from torch.distributed import TCPStore

import streamer
from streamer import _native
from streamer.core.peers import joining, line, tcp_store
from streamer.core.peers.discovery import addresses_of, own_ports
from streamer.core.peers.tcp_store import LIFE_S, SLOTS, leave_stores

LONG_S = 60.0
HOST = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(tcp_store, "EVERY_S", 0.1)
    monkeypatch.setattr(tcp_store, "ANSWER_S", 1.0)
    yield
    leave_stores()


class Host:
    """The process of a store, which can be killed and frozen."""

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-c", HOST, str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.peers = f"tcpstore://127.0.0.1:{self.port}"

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def announce(self, address: str, until: float) -> None:
        client = TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=LONG_S))
        client.set(f"{SLOTS}/{client.add(SLOTS, 1) - 1}", f"{address} {until}")

    def slots(self) -> int:
        return TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=LONG_S)).add(SLOTS, 0)


def eventually(peers: str, expected: list[str], own_port: int | None = None) -> None:
    deadline = time.monotonic() + LONG_S
    while (found := addresses_of(peers, own_port)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_peer_announces_itself_and_finds_those_whose_time_is_not_over():
    with Host() as host:
        host.announce("10.255.0.1:7070", time.time() + LIFE_S)
        host.announce("10.255.0.2:7070", time.time() - 1)
        eventually(host.peers, ["10.255.0.1:7070"], own_port=7071)
        eventually(host.peers, ["10.255.0.1:7070", "127.0.0.1:7071"])
        assert host.slots() == 2  # this process has the one whose time was over
    assert own_ports(host.peers) == [7070, 0]


def test_a_new_host_at_the_place_of_a_dead_one_hears_of_this_peer():
    with Host() as first:
        first.announce("10.255.0.1:7070", time.time() + LIFE_S)
        eventually(first.peers, ["10.255.0.1:7070"], own_port=7071)
    assert addresses_of(first.peers, 7071) == ["10.255.0.1:7070"]
    with Host(first.port) as second:
        second.announce("10.255.0.3:7070", time.time() + LIFE_S)
        eventually(second.peers, ["10.255.0.3:7070"], own_port=7071)
        assert second.slots() == 2


def test_a_frozen_host_costs_a_load_nothing_but_the_news():
    with Host() as host:
        host.announce("10.255.0.1:7070", time.time() + LIFE_S)
        eventually(host.peers, ["10.255.0.1:7070"])
        os.kill(host.process.pid, signal.SIGSTOP)
        time.sleep(0.5)  # so that the thread is in a call that does not return
        for _ in range(3):
            assert addresses_of(host.peers) == ["10.255.0.1:7070"]
        os.kill(host.process.pid, signal.SIGCONT)
        host.announce("10.255.0.2:7070", time.time() + LIFE_S)
        eventually(host.peers, ["10.255.0.1:7070", "10.255.0.2:7070"])


def test_a_store_that_nobody_serves_is_no_peer(monkeypatch):
    monkeypatch.setattr(tcp_store, "FIRST_LIST_S", 0.2)
    assert addresses_of("tcpstore://127.0.0.1:9") == []


def test_a_load_reads_from_a_peer_that_announced_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", "token-of-the-tests")
    monkeypatch.setattr(line, "PATIENCE_S", 30.0)
    tensors = {"weight": np.arange(2_000_000, dtype=np.float32)}
    with Host() as host, one_file(data=save(tensors)) as server:
        reports = []
        for folder in "ab":
            options = streamer.Options(cache_dir=tmp_path / folder, peers=host.peers)
            uri = place_of("http", server)[0]
            with streamer.stream(uri, framework="np", options=options, progress=False) as stream:
                np.testing.assert_array_equal(dict(stream)["weight"], tensors["weight"])
            assert _native.finish_cache_writes(LONG_S)
            reports.append(sum(stream.report.peer_bytes.values()))
            until = time.monotonic() + LONG_S
            while host.slots() < len(reports) and time.monotonic() < until:
                time.sleep(0.05)
        joining.leave_peers()
    assert reports == [0, 8_000_000]
