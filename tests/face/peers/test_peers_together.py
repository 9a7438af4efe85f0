"""Peers with what else divides a load: processes of a machine, ranks of a group; and a network in two halves."""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib

import numpy as np
import pytest
from group_ranks import ranks_tell, values
from node_load import NodeLoad
from safetensors.numpy import save, save_file
from servers.one_file import is_block, one_file, place_of

import streamer
from streamer import _native
from streamer.core.peers import joining
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number:02}": np.arange(number, number + 500_000, dtype=np.float32) for number in range(32)}
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


def load(storage, **options):
    uri, storage_options = place_of("s3", storage)
    own = streamer.Options(**options)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=own) as stream:
        tensors = dict(stream)
    assert _native.finish_cache_writes(30)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    return stream.report


@pytest.fixture
def peer(storage, tmp_path):
    """A peer that holds everything."""
    load(storage, cache_dir=tmp_path / "warm")
    with contextlib.closing(PeerServer(str(tmp_path / "warm"), "127.0.0.1", 0, TOKEN)) as server:
        yield f"127.0.0.1:{server.port}"


def test_processes_of_a_machine_read_from_peers_and_get_the_right_tensors(storage, peer, tmp_path):
    uri, storage_options = place_of("s3", storage)
    before = sum(map(is_block, storage.requests))
    how = {"storage_options": storage_options, "share": "node", "least_bytes": 1, "peers": [peer]}
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(NodeLoad(uri, **how, cache_dir=str(tmp_path / "own"))) for _ in range(2)]
        for each in loads:
            each.expect("ready")
        for each in loads:
            each.go()
        results = [each.result() for each in loads]
    for each in results:
        assert each["error"] is None
        assert each["tensors"] == {name: zlib.crc32(tensor) for name, tensor in TENSORS.items()}
    given = sum(sum(each["report"]["peer_bytes"].values()) for each in results)
    read = sum(each["report"]["bytes_read"] for each in results)
    of_storage = sum(map(is_block, storage.requests)) - before
    assert (given > 0) or (read > 0 and of_storage > 0)


def test_ranks_of_a_group_read_from_peers_and_get_the_right_tensors(storage, peer, tmp_path, monkeypatch):
    uri, storage_options = place_of("s3", storage)
    save_file(TENSORS, tmp_path / "expected.safetensors")
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("STREAMER_PEERS", peer)
    how = {"uri": uri, "storage_options": storage_options, "expected": str(tmp_path / "expected.safetensors")}
    (reported,) = ranks_tell(2, ("from_peers", how))
    for each in values(reported):
        assert each["wrong"] == []
        assert each["complete"]
    assert {address for each in values(reported) for address in each["peer_bytes"]} == {peer}
    sums = [sum(each["peer_bytes"].values()) for each in values(reported)]
    assert sum(sums) == sum(tensor.nbytes for tensor in TENSORS.values())


@pytest.mark.parametrize("is_one_way", [False, True])
def test_halves_that_do_not_reach_each_other_load_from_each_other_and_the_storage(storage, tmp_path, is_one_way):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        # Whoever connects to one of these gets no answer, as behind a partition that drops packets.
        walls = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports, wall = [each.getsockname()[1] for each in held], [each.getsockname()[1] for each in walls]
        for each in held:
            each.close()
        halves = [[*ports[:2], *(ports[2:] if is_one_way else wall)], [*ports[2:], *wall]]
        together, reports = threading.Barrier(4), []

        def run(number):
            peers = [f"127.0.0.1:{port}" for port in halves[number // 2]]
            own = [f"127.0.0.1:{ports[number]}"]  # of a list, a process takes the first free port of its own
            together.wait(60)
            reports.append(load(storage, cache_dir=tmp_path / str(number), peers=list(dict.fromkeys(own + peers))))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(reports) == 4
    assert all(each.is_complete for each in reports)
    assert all(each.bytes_read + sum(each.peer_bytes.values()) == each.bytes for each in reports)
