"""Nodes that load the same at the same time: each reads its part from the storage, and the rest from the others."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save
from servers.background import served
from servers.one_file import is_block, one_file, place_of
from servers.scripted_peer import peer_that

import streamer
from streamer import _native
from streamer.core.engine.plan import Missing
from streamer.core.peers import joining
from streamer.core.peers.asking import Answer, Peers
from streamer.core.peers.flow import Flow
from streamer.core.peers.guide import LoadGuide, owners
from streamer.core.peers.held import ToldLoad
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number:02}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(32)}
DATA = save(TENSORS)
TENSORS_BEGIN = 8 + int.from_bytes(DATA[:8], "little")


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in held]


def load(storage, options):
    uri, storage_options = place_of("s3", storage)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    return stream.report


def given_bytes(storage):
    """Count the bytes of tensors that the storage gave."""
    ranges = [request.headers["range"].removeprefix("bytes=") for request in storage.requests if is_block(request)]
    return sum(int(last) + 1 - int(begin) for begin, last in (each.split("-") for each in ranges))


def test_nodes_that_begin_together_read_the_storage_less_than_once_each(tmp_path):
    nodes = 4
    peers = free_addresses(nodes)
    together, reports = threading.Barrier(nodes), []

    def run(number):
        together.wait(60)
        options = streamer.Options(cache_dir=tmp_path / str(number), peers=peers, prefer="egress")
        reports.append(load(storage, options))

    with one_file(data=DATA) as storage:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(nodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == nodes
        assert given_bytes(storage) < 1.5 * len(DATA)  # of 4; about 1 if none of them is late
        assert sum(sum(each.peer_bytes.values()) for each in reports) > len(DATA)


def test_loads_of_processes_without_a_server_divide_too(tmp_path):
    nodes, together, reports = 3, threading.Barrier(3), []

    def run():
        together.wait(60)
        reports.append(load(storage, streamer.Options(cache_dir=tmp_path, peers=[node.address], prefer="egress")))

    def slowly(request, _):
        if is_block(request):
            time.sleep(0.1)

    with (
        one_file(slowly, data=DATA) as storage,
        contextlib.closing(PeerServer(str(tmp_path), "127.0.0.1", 0, TOKEN)) as node,
    ):
        threads = [threading.Thread(target=run) for _ in range(nodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == nodes
        assert given_bytes(storage) < 1.5 * len(DATA)  # of 3
        assert sum(each.peer_bytes.get(node.address, 0) for each in reports) > len(DATA)


def test_loads_of_one_process_divide_too(tmp_path):
    (address,), reports, together = free_addresses(1), [], threading.Barrier(3)

    def run():
        together.wait(60)
        reports.append(load(storage, streamer.Options(cache_dir=tmp_path, peers=[address], prefer="egress")))

    def slowly(request, _):
        if is_block(request):
            time.sleep(0.1)

    with one_file(slowly, data=DATA) as storage:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 3
        assert given_bytes(storage) < 1.5 * len(DATA)


def test_a_server_of_another_folder_is_not_told(tmp_path, caplog):
    with one_file(data=DATA) as storage, contextlib.closing(PeerServer(str(tmp_path), "127.0.0.1", 0, TOKEN)) as node:
        report = load(storage, streamer.Options(cache_dir=tmp_path / "own", peers=[node.address]))
        assert report.bytes_read == report.bytes
        assert not node.loads._told
        assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
            f"{tmp_path / 'own'} is not served to peers: {node.address} serves another folder"
        ]


def test_peers_of_another_zone_give_only_what_none_of_the_own_zone_has(tmp_path, monkeypatch):
    with one_file(data=DATA) as storage, warm_peer(storage, tmp_path / "0") as near, peer_that(whole, DATA) as far:
        options = streamer.Options(cache_dir=tmp_path / "own", peers=[far.address, near.address], prefer="egress")
        monkeypatch.setenv("STREAMER_PEERS_ZONE", "a")  # the other one says nothing of its zone
        assert load(storage, options).peer_bytes == {near.address: len(DATA) - TENSORS_BEGIN}
        near.close()
        options = dataclasses.replace(options, cache_dir=tmp_path / "other")
        assert load(storage, options).peer_bytes == {far.address: len(DATA) - TENSORS_BEGIN}


def test_what_a_peer_of_another_zone_holds_is_not_read_from_the_storage_when_it_is_late():
    missing = [Missing(item, 0, "5f", item * 100, item * 100 + 100) for item in range(4)]
    guide = LoadGuide(Peers(["far:7070"], TOKEN), missing, in_item_order=False)
    guide._engine, guide._flows = SimpleNamespace(lost_peers=list), {"far:7070": Flow({1})}
    guide._learn(missing, {"far:7070": Answer(set(), False, [7] * 4, set())})
    guide._learn(missing, {})
    assert len(guide._queues["far:7070"]) == 4
    assert not guide._mine


def test_a_node_alone_reads_everything_itself(tmp_path):
    with one_file(data=DATA) as storage:
        report = load(storage, streamer.Options(cache_dir=tmp_path, peers=free_addresses(2)))
        assert (report.peer_bytes, report.bytes_read) == ({}, report.bytes)
        assert not [each for each in threading.enumerate() if each.name == "streamer-guide"]


def whole(peer, begin, end):
    peer.head(begin, end)
    peer.wfile.write(DATA[begin:end])


def warm_peer(storage, folder, rate=0):
    load(storage, streamer.Options(cache_dir=folder))
    return contextlib.closing(PeerServer(str(folder), "127.0.0.1", 0, TOKEN, max_bytes_per_second=rate))


def test_a_storage_that_is_faster_than_the_peers_gives_most(tmp_path):
    with one_file(data=DATA) as storage, warm_peer(storage, tmp_path / "0", rate=4_000_000) as slow:
        report = load(storage, streamer.Options(cache_dir=tmp_path / "own", peers=[slow.address]))
        assert report.bytes_read > report.bytes / 2


def test_a_storage_whose_bytes_cost_money_gives_only_what_no_peer_gives(tmp_path):
    with one_file(data=DATA) as storage, warm_peer(storage, tmp_path / "0", rate=20_000_000) as slow:
        options = streamer.Options(cache_dir=tmp_path / "own", peers=[slow.address], prefer="egress")
        assert load(storage, options).bytes_read == 0


def test_peers_are_read_as_fast_as_each_of_them_gives(tmp_path):
    with (
        one_file(data=DATA) as storage,
        warm_peer(storage, tmp_path / "0", rate=1_000_000) as slow,
        warm_peer(storage, tmp_path / "1") as fast,
    ):
        peers = [slow.address, fast.address]
        report = load(storage, streamer.Options(cache_dir=tmp_path / "own", peers=peers, prefer="egress"))
        assert report.peer_bytes[fast.address] > report.bytes / 2


def test_a_peer_that_gets_no_processor_for_a_while_is_read_again(tmp_path):
    pauses = iter([False, True])

    def give(peer, begin, end):
        if next(pauses, False):
            peer.server.ended.wait(2)
        peer.head(begin, end)
        peer.wfile.write(DATA[begin:end])

    with one_file(data=DATA) as storage, peer_that(give, DATA) as peer:
        options = streamer.Options(cache_dir=tmp_path, peers=[peer.address], prefer="egress")
        assert load(storage, options).peer_bytes[peer.address] > len(DATA) / 2


def test_what_one_node_reads_from_the_storage_no_other_reads(tmp_path):
    ranges = [(begin, begin + 100) for begin in range(0, 400, 100)]
    with contextlib.closing(PeerServer(str(tmp_path), "127.0.0.1", 0, TOKEN)) as server:
        missing = [Missing(item, 0, "5f", *each) for item, each in enumerate(ranges)]
        peers = Peers([server.address], TOKEN)
        name = "0123456789abcdef"
        server.loads.note(ToldLoad(name, 0.1, {peers.names_of(missing)["5f"]: {ranges[2]}}))
        (answer,) = peers.ask(missing).values()
        assert (answer.loads, [*answer.coming], answer.crcs) == ({name}, [2], [None] * 4)
        time.sleep(1.6)
        (answer,) = peers.ask(missing).values()
        assert (answer.loads, [*answer.coming]) == (set(), [])
        peers.hang_up()


class _Lazy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["objects"]
        objects = {name: [None] * len(ranges) for name, ranges in asked.items()}
        body = json.dumps({"objects": objects, "loads": ["0123456789abcdef"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_peer_that_loads_for_ever_is_not_waited_for(tmp_path):
    lazy = ThreadingHTTPServer(("127.0.0.1", 0), _Lazy)
    with one_file(data=DATA) as storage, served(lazy):
        peers = [*free_addresses(1), f"127.0.0.1:{lazy.server_port}"]
        report = load(storage, streamer.Options(cache_dir=tmp_path, peers=peers))
        assert report.bytes_read == report.bytes


def test_a_load_that_is_left_early_leaves_no_guide(tmp_path):
    with one_file(data=DATA) as storage:
        uri, storage_options = place_of("s3", storage)
        options = streamer.Options(cache_dir=tmp_path, peers=free_addresses(2))
        with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
            next(stream)
        assert not [each for each in threading.enumerate() if each.name == "streamer-guide"]
        assert _native.finish_cache_writes(30)


@pytest.mark.parametrize("limit_bytes", [None, 4_000_000])
def test_tensors_come_in_the_order_of_the_file_however_little_memory_there_is(tmp_path, limit_bytes):
    with (
        one_file(data=DATA) as storage,
        warm_peer(storage, tmp_path / "0") as one,
        warm_peer(storage, tmp_path / "1") as two,
    ):
        uri, storage_options = place_of("s3", storage)
        for number, peers in enumerate([free_addresses(2), [one.address, two.address]]):
            options = streamer.Options(cache_dir=tmp_path / f"own{number}", peers=peers, memory_limit_bytes=limit_bytes)
            how = {"framework": "np", "storage_options": storage_options, "options": options, "order": "file"}
            with streamer.stream(uri, **how) as stream:
                assert [name for name, _ in stream] == sorted(TENSORS)
            assert _native.finish_cache_writes(30)


def test_parts_are_divided_evenly_and_alike_on_each_node_and_move_little_when_one_leaves():
    parts, nodes = [f"part{number}" for number in range(160)], [f"node{number}" for number in range(8)]
    before = owners(parts, nodes)
    assert before == owners(parts, reversed(nodes))
    assert {[*before.values()].count(node) for node in nodes} == {20}
    after = owners(parts, nodes[1:])
    moved = [part for part in parts if before[part] != after[part]]
    assert 20 <= len(moved) < 80
