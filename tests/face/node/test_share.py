"""``share="node"``: processes of one machine read each byte of a checkpoint once, and each gets the right tensors."""

from __future__ import annotations

import os
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_load import NodeLoad, all_meetings
from safetensors.numpy import load_file, save_file
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer import _reads
from streamer.core.errors import OutOfMemoryError

pytestmark = pytest.mark.server

MIB = 1 << 20
LONG_S = 60.0  # of waits for others, where a test counts bytes: the machine may be busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Make two shards of 8 MiB."""
    root, random = tmp_path_factory.mktemp("share"), np.random.default_rng(3)
    for shard in (1, 2):
        tensors = {
            f"{shard}.{number}.{kind}": random.integers(0, 255, (1024, 1024), dtype=np.uint8)
            for number in range(4)
            for kind in ("columns", "rows")
        }
        save_file(tensors, root / f"model-0000{shard}-of-00002.safetensors")
    return root


@pytest.fixture(scope="module")
def whole(folder) -> dict[str, Any]:
    return {name: tensor for path in folder.iterdir() for name, tensor in load_file(path).items()}


@pytest.fixture(scope="module")
def expected(whole) -> dict[str, int]:
    return {name: zlib.crc32(tensor) for name, tensor in whole.items()}


@pytest.fixture(scope="module")
def uri(s3_server, folder) -> str:
    return s3_server.upload_folder(folder, "private", "share")


@pytest.fixture
def proxy(s3_server) -> Iterator[TcpProxy]:
    with TcpProxy(s3_server.port, http_requests) as between:
        yield between


@pytest.fixture
def started(s3_server, proxy, uri):
    """Start processes that are ready to load; they end with the test."""
    options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
    with ExitStack() as stack:

        def start(*hows: dict[str, Any], environment: dict[str, str] | None = None) -> list[NodeLoad]:
            loads = [
                stack.enter_context(NodeLoad(uri, environment, **{"storage_options": options, "share": "node", **how}))
                for how in hows
            ]
            for load in loads:
                load.expect("ready")
            return loads

        yield start


def together(loads: list[NodeLoad]) -> list[dict[str, Any]]:
    for load in loads:
        load.go()
    return [load.result() for load in loads]


def launched(count: int) -> dict[str, str]:
    """Return the environment of ranks that wait for each other, so that no rank reads all before the others join."""
    return {**os.environ, "LOCAL_WORLD_SIZE": str(count)}


def wait_until(is_true: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_four_processes_read_each_byte_once(started, proxy, expected):
    loads = started(*[{"patience_s": LONG_S}] * 4, environment=launched(4))
    before = proxy.passed_bytes
    results = together(loads)
    size = 16 * MIB
    assert [each["tensors"] for each in results] == [expected] * 4
    assert size <= proxy.passed_bytes - before <= 1.02 * size
    reports = [each["report"] for each in results]
    assert sum(each["bytes_read"] for each in reports) == size
    assert sum(each["shared_bytes"] for each in reports) == 3 * size
    assert all(each["bytes"] == size and each["is_complete"] for each in reports)
    assert all(each["requests"] > 0 for each in reports)


def test_without_it_each_reads_all(started, proxy, expected):
    loads = started(*[{"share": "off"}] * 2)
    before = proxy.passed_bytes
    results = together(loads)
    assert [each["tensors"] for each in results] == [expected] * 2
    assert proxy.passed_bytes - before >= 32 * MIB


def test_with_a_cache_they_read_once_and_the_next_ones_nothing(started, proxy, expected, tmp_path):
    hows = [{"patience_s": LONG_S, "cache_dir": str(tmp_path / "cache")}] * 3
    size, sent = 16 * MIB, []
    for _ in range(2):
        loads = started(*hows, environment=launched(3))
        before = proxy.passed_bytes
        results = together(loads)
        sent.append(proxy.passed_bytes - before)
        assert [each["tensors"] for each in results] == [expected] * 3
        for load in loads:
            load.process.communicate("\n", LONG_S)  # it ends when the cache has what it read
    assert size <= sent[0] <= 1.02 * size
    assert sent[1] <= 0.02 * size
    assert all(each["report"]["bytes_read"] == 0 for each in results)


def test_processes_that_want_other_tensors_read_what_any_of_them_wants(started, proxy, expected):
    names = [["1.0.*", "1.1.*"], ["1.1.*", "2.3.*"]]
    loads = started(*[{"names": each, "patience_s": LONG_S} for each in names], environment=launched(2))
    before = proxy.passed_bytes
    results = together(loads)
    for result, patterns in zip(results, names, strict=True):
        prefixes = tuple(each[:4] for each in patterns)
        assert result["tensors"] == {name: crc for name, crc in expected.items() if name.startswith(prefixes)}
    assert proxy.passed_bytes - before <= 1.02 * 6 * MIB


def test_ranks_that_keep_slices_read_the_model_once(started, proxy, whole):
    loads = started(*[{"part": [rank, 4], "patience_s": LONG_S} for rank in range(4)], environment=launched(4))
    before = proxy.passed_bytes
    results = together(loads)
    for rank, result in enumerate(results):
        kept = slice(256 * rank, 256 * (rank + 1))
        parts = {name: each[kept] if name.endswith("rows") else each[:, kept] for name, each in whole.items()}
        assert result["tensors"] == {name: zlib.crc32(np.ascontiguousarray(each)) for name, each in parts.items()}
    assert proxy.passed_bytes - before <= 1.02 * 16 * MIB


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "member"])
def test_the_others_go_on_when_one_is_killed(started, proxy, expected, victim):
    loads = started(*[{}] * 3)
    proxy.bytes_per_s = 16 * MIB
    before = proxy.passed_bytes
    for load in loads:
        load.go()
    wait_until(lambda: proxy.passed_bytes - before > 4 * MIB)
    loads[victim].process.kill()
    for load in loads[:victim] + loads[victim + 1 :]:
        assert load.result()["tensors"] == expected


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "member"])
def test_the_others_go_on_when_one_is_stopped_and_it_goes_on_when_it_may(started, proxy, expected, victim):
    loads = started(*[{}] * 3)
    proxy.bytes_per_s = 16 * MIB
    before = proxy.passed_bytes
    for load in loads:
        load.go()
    wait_until(lambda: proxy.passed_bytes - before > 4 * MIB)
    loads[victim].process.send_signal(signal.SIGSTOP)
    for load in loads[:victim] + loads[victim + 1 :]:
        result = load.result()
        assert result["tensors"] == expected
    loads[victim].process.send_signal(signal.SIGCONT)
    assert loads[victim].result()["tensors"] == expected


def test_a_member_that_leaves_early_leaves_its_part_to_the_others(started, proxy, expected):
    loads = started({"leave_after": 1, "patience_s": LONG_S}, {"patience_s": LONG_S})
    proxy.bytes_per_s = 16 * MIB
    first, second = together(loads)
    assert len(first["tensors"]) == 1
    assert second["tensors"] == expected


def test_a_late_member_gets_what_is_there_and_reads_the_rest(started, proxy, expected):
    loads = started(*[{"patience_s": LONG_S}] * 2)
    proxy.bytes_per_s = 16 * MIB
    before = proxy.passed_bytes
    loads[0].go()
    wait_until(lambda: proxy.passed_bytes - before > 6 * MIB)
    loads[1].go()
    results = [load.result() for load in loads]
    assert [each["tensors"] for each in results] == [expected] * 2
    assert proxy.passed_bytes - before <= 1.02 * 16 * MIB  # all of it has room


def test_a_member_that_stops_taking_does_not_stall_the_others(started, expected):
    limit = 2 * MIB  # of the node: half of it is shared memory
    small = {"memory_limit_bytes": limit, "least_memory_bytes": 0}
    loads = started(small, {"stop_after": 2, **small})
    loads[1].go()
    loads[0].go()
    assert loads[0].result()["tensors"] == expected
    assert loads[1].process.stdin is not None
    print(file=loads[1].process.stdin, flush=True)
    assert loads[1].result()["tensors"] == expected


def test_killed_members_leave_nothing(started, proxy):
    loads = started(*[{}] * 2)
    proxy.bytes_per_s = 4 * MIB
    for load in loads:
        load.go()
    own: set[str] = set()
    wait_until(lambda: own.update(*(load.meetings() for load in loads)) or own)
    for load in loads:
        load.process.kill()
        load.process.wait()
    wait_until(lambda: own.isdisjoint(dict(all_meetings()).values()))


def test_an_ended_load_leaves_nothing(started, expected):
    loads = started(*[{}] * 2)
    results = together(loads)
    assert [each["tensors"] for each in results] == [expected] * 2
    for load in loads:
        open_files = [os.readlink(each) for each in Path(f"/proc/{load.process.pid}/fd").iterdir()]
        wait_until(lambda pid=load.process.pid: "streamer-node" not in files_of(pid))
        assert open_files
        wait_until(lambda load=load: not load.meetings())


def files_of(pid: int) -> str:
    """List the open files and the mapped memory of a process."""
    found = [Path(f"/proc/{pid}/maps").read_text()]
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:  # closed meanwhile
            continue
    return "\n".join(found)


def test_processes_that_were_launched_together_share_by_themselves(started, proxy, expected):
    quiet = {"share": None, "patience_s": LONG_S, "least_bytes": MIB}
    loads = started(quiet, quiet, environment=launched(2))
    before = proxy.passed_bytes
    results = together(loads)
    assert [each["tensors"] for each in results] == [expected] * 2
    assert proxy.passed_bytes - before <= 1.02 * 16 * MIB


def test_an_object_that_was_replaced_is_an_error_on_all(started, s3_server, folder, uri):
    loads = started(*[{}] * 2)
    name = "model-00002-of-00002.safetensors"
    data = (folder / name).read_bytes()
    s3_server.put("private", f"share/{name}", data[:-1] + b"\0" if data[-1:] != b"\0" else data[:-1] + b"\1")
    try:
        assert [each["error"] for each in together(loads)] == ["ChangedError"] * 2
    finally:
        s3_server.put("private", f"share/{name}", data)


@pytest.mark.parametrize(
    "how",
    [
        {"refused": ["streamer-fetch", 0]},
        {"refused": ["streamer-lead", 0]},
        {"refused": ["streamer-member", 0]},
        {"refused": ["streamer-py", 0]},
        {"refused": ["streamer-", 3]},
        {"descriptors": 12},
        {"memory_limit_bytes": 4 * MIB},
    ],
    ids=str,
)
def test_a_load_that_has_too_little_for_a_meeting_reads_alone_regression(started, expected, how):
    poor, rich = started(how, {})
    results = together([poor, rich])
    assert [each["error"] for each in results] == [None, None]
    assert [each["tensors"] for each in results] == [expected] * 2


def test_a_meeting_that_loses_a_descriptor_lets_others_meet_without_it_regression(started, expected):
    loads = started({"pause_s": 0.05, "descriptors": 40}, {}, {})
    for load in loads:
        load.go()
    assert [load.result()["tensors"] for load in loads] == [expected] * 3


def test_a_load_without_memory_for_a_shared_session_leaves_its_meeting_regression(
    monkeypatch, s3_server, uri, expected
):
    begin = _reads.ReadSession
    refusals = [OutOfMemoryError("there is no memory for this session")]

    def scarce(*arguments: Any, **how: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return begin(*arguments, **how)

    monkeypatch.setattr(_reads, "ReadSession", scarce)
    options = streamer.Options(share="node")
    kept = {"framework": "np", "storage_options": s3_server.storage_options(), "options": options}
    with streamer.stream(uri, **kept) as stream:
        assert not [
            each.name for each in threading.enumerate() if each.name.startswith(("streamer-member", "streamer-fetch"))
        ]
        assert {name: zlib.crc32(tensor) for name, tensor in stream} == expected
    assert stream.report.bytes_read == stream.report.bytes
