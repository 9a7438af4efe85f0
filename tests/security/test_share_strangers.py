"""Processes that share a checkpoint share it with their own user only, and leave nothing to a forked child."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import zlib
from contextlib import ExitStack, closing

import numpy as np
import pytest
from nobody import NOBODY, as_nobody
from node_load import NodeLoad, all_meetings
from safetensors.numpy import save_file
from servers.scripted_http import ScriptedServer
from servers.tcp_proxy import TcpProxy, http_requests

from streamer.core.node.messages import Rendezvous, process_of

pytestmark = pytest.mark.server
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
SIZE = 4 << 20


@pytest.fixture
def data(tmp_path) -> bytes:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.random.default_rng(5).integers(0, 255, SIZE, dtype=np.uint8)}, file)
    return file.read_bytes()


@pytest.fixture
def started(data):
    """Start processes that load slowly."""
    with ScriptedServer(data) as server, ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(server.port, http_requests, bytes_per_s=SIZE))
        uri = server.url.replace(str(server.port), str(proxy.port))

        def start() -> NodeLoad:
            load = stack.enter_context(NodeLoad(uri, storage_options={}, share="node"))
            load.expect("ready")
            return load

        yield start


def name_of_a_meeting(load: NodeLoad) -> str:
    deadline = time.monotonic() + 60
    while not (found := load.meetings()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return "\0" + min(found)


def connected(name: str | bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(name)
    return made


def received(from_leader: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, descriptors, _, _ = socket.recv_fds(from_leader, 100, 1)
    except ConnectionResetError:
        return b"", []
    return data, list(descriptors)


@only_root
def test_another_user_gets_no_message_and_no_memory(started):
    load = started()
    load.go()
    name = name_of_a_meeting(load)
    with as_nobody():
        stranger = connected(name)
    with closing(stranger):
        assert received(stranger) == (b"", [])
    with closing(connected(name)) as own:  # the check is not one that refuses all
        data, descriptors = received(own)
        assert b"welcome" in data
        assert descriptors
        os.close(descriptors[0])
    assert load.result()["error"] is None


@only_root
def test_a_name_that_another_user_has_taken_is_passed_over(started, data):
    first = started()
    first.go()
    name = name_of_a_meeting(first)
    assert first.result()["error"] is None
    while name[1:] in dict(all_meetings()).values():
        time.sleep(0.01)
    with as_nobody():
        squatter = socket.socket(socket.AF_UNIX)
        squatter.bind(name)
        squatter.listen()
    with closing(squatter):
        loads = [started(), started()]
        for load in loads:
            load.go()
        results = [load.result() for load in loads]
        squatter.setblocking(False)
        accepted, _ = squatter.accept()
        with closing(accepted):
            assert accepted.recv(100) == b""  # it learned nothing but the name
    assert [each["tensors"] for each in results] == [{"a": zlib.crc32(data[-SIZE:])}] * 2
    assert sum(each["report"]["shared_bytes"] for each in results) > 0


@only_root
def test_the_kernel_says_who_the_other_side_is():
    place = Rendezvous("0" * 40)
    listener = place.listen(0)
    assert listener is not None
    with closing(listener):
        own = place.connect(0)
        assert own is not None
        accepted, _ = listener.accept()
        assert process_of(accepted) == os.getpid()
        accepted.close()
        own.close()
        with as_nobody():
            other = connected(listener.getsockname())
        accepted, _ = listener.accept()
        assert process_of(accepted) is None
        accepted.close()
        other.close()
    assert os.geteuid() != NOBODY


def test_a_process_that_speaks_nonsense_is_left_out_and_the_load_goes_on(started, data):
    load = started()
    load.go()
    name = name_of_a_meeting(load)
    for nonsense in (b"\xff" * 8, b"\x02\0\0\0[]", b'\x0a\0\0\0["grant",1', b'\x08\0\0\0["join"]'):
        with closing(connected(name)) as own:
            received(own)
            own.send(nonsense)
            assert received(own)[0] == b""
    assert load.result()["tensors"] == {"a": zlib.crc32(data[-SIZE:])}


FORKS = """
import os, sys
import streamer
options = streamer.Options(share="node")
with streamer.stream(sys.argv[1], framework="np", options=options, progress=False) as tensors:
    child = os.fork()
    if child == 0:
        opened = []
        for each in os.listdir("/proc/self/fd"):
            try:
                opened.append(os.readlink("/proc/self/fd/" + each))
            except OSError:
                pass
        assert not [each for each in opened if "memfd:streamer-node" in each], opened
        again = streamer.load(sys.argv[1], framework="np", options=options, progress=False)
        os._exit(0 if again["a"].nbytes == 4 << 20 else 1)
    assert sum(tensor.nbytes for _, tensor in tensors) == 4 << 20
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_has_no_part_in_the_meeting_of_its_parent_and_meets_others_itself(data):
    with ScriptedServer(data) as server, TcpProxy(server.port, http_requests, bytes_per_s=SIZE) as proxy:
        uri = server.url.replace(str(server.port), str(proxy.port))
        subprocess.run([sys.executable, "-c", FORKS, uri], check=True, timeout=60)
