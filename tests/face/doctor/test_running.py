"""``doctor --pid`` tells apart what a load may wait for, and ``ps`` lists the processes that load."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save
from servers.scripted_http import Answer, Request, ScriptedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer
from streamer._cli import main
from streamer._doctor import running
from streamer.core import load_status

WEIGHTS = {f"w{number}": np.zeros(1 << 20, np.float32) for number in range(4)}
STREAM = """
import sys, streamer
options = {"share": "node", "first_byte_timeout_s": 60} if sys.argv[2] == "node" else {"memory_limit_bytes": 1 << 22}
with streamer.stream(sys.argv[1], framework="np", options=streamer.Options(**options)) as tensors:
    for number, _ in enumerate(tensors):
        print(number, flush=True)
        sys.stdin.readline()
"""


def run(*words: object) -> Any:
    return json.loads(CliRunner().invoke(main, [*map(str, words), "--json"]).stdout)


def line_of(pid: int, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look into a process until a line is as wanted, for a minute at most."""
    give_up_at = time.monotonic() + 60
    while True:
        lines = run("doctor", "--pid", pid)["findings"]
        found = next(filter(wanted, lines), None)
        if found is not None:
            return found
        assert time.monotonic() < give_up_at, lines


@contextmanager
def loading(uri: str, share: str = "off") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STREAM, uri, share]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "model.safetensors").write_bytes(save(WEIGHTS))
    return str(tmp_path / "model.safetensors")


def test_a_consumer_that_sleeps_and_a_stopped_process_are_told_apart(checkpoint: str) -> None:
    with loading(checkpoint) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        line = line_of(child.pid, lambda each: "consumer" in each["found"])
        assert (line["state"], line["name"]) == ("slow", checkpoint)
        (listed,) = [each for each in run("ps") if each["pid"] == child.pid]
        assert [load["stage"] for load in listed["loads"]] == ["consumer"]
        child.send_signal(signal.SIGSTOP)
        line = line_of(child.pid, lambda each: "stopped by a signal" in each["found"])
        assert (line["state"], line["advice"]) == ("broken", f"kill -CONT {child.pid}")
        child.send_signal(signal.SIGCONT)
        assert line_of(child.pid, lambda each: "consumer" in each["found"])


def test_a_server_that_is_away_is_named_and_one_that_hangs_is_told() -> None:
    data = save(WEIGHTS)
    is_hung = []

    def script(request: Request, answer: Answer) -> None:
        if request.end - request.begin > 1 << 18 and is_hung:
            server.stopping.wait(60)

    with ScriptedServer(data, script) as server, TcpProxy(server.port, http_requests) as proxy:
        server.answers_head = True
        is_hung.append(True)
        with loading(f"http://127.0.0.1:{proxy.port}/model.safetensors") as child:
            line = line_of(child.pid, lambda each: "waits for the storage" in each["found"])
            assert line["state"] in ("slow", "broken")
            proxy.leave()
            line = line_of(child.pid, lambda each: "does not serve requests" in each["found"])
            assert (line["state"], f"127.0.0.1:{proxy.port}" in line["found"]) == ("broken", True)


def go_on(child: subprocess.Popen[str], times: int = 1) -> None:
    assert child.stdin is not None
    child.stdin.write("\n" * times)
    child.stdin.flush()


@contextmanager
def hanging(hangs: Callable[[Request], object]) -> Iterator[str]:
    """Yield the URL of a server that leaves requests without an answer for which the function waits."""
    with ScriptedServer(save(WEIGHTS), lambda request, _: hangs(request)) as server:
        server.answers_head = True
        yield f"{server.url}/model.safetensors"


def test_a_sharer_names_the_process_that_reads_for_it_and_the_reader_who_waits() -> None:
    released, others_are_served = threading.Event(), threading.Event()
    hung: list[Request] = []

    def hang(request: Request) -> None:
        if request.begin and not others_are_served.is_set():
            hung.append(request)
        if request.begin and any(request.begin < each.end and each.begin < request.end for each in hung):
            released.wait(60)

    with hanging(hang) as uri, loading(uri, "node") as reader:
        line_of(reader.pid, lambda each: "waits for the storage" in each["found"] and bool(hung))
        others_are_served.set()
        go_on(reader, len(WEIGHTS))
        with loading(uri, "node") as sharer:
            go_on(sharer, len(WEIGHTS))
            line = line_of(sharer.pid, lambda each: f"waits for process {reader.pid}, which reads" in each["found"])
            assert (line["state"], line["name"]) == ("slow", uri)
            assert line_of(sharer.pid, lambda each: each["name"] == f"process {reader.pid}: {uri}")
            assert line_of(reader.pid, lambda each: each["found"] == f"waiting for process {reader.pid}: {sharer.pid}")
            listed = {each["pid"]: each for each in run("ps")}
            assert listed[reader.pid]["waiting"] == [sharer.pid]
            assert [each["stage"] for each in listed[sharer.pid]["loads"]] == ["other process"]
            text = CliRunner().invoke(main, ["ps"]).stdout
            assert f"other process {reader.pid}" in text
            assert "reading, 1 wait for it" in text
        released.set()


RANK = """
import sys, torch.distributed, streamer
rank, meeting, uri, is_late = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "late"
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
print("joined", flush=True)
if rank and is_late:
    sys.stdin.readline()
options = streamer.Options(first_byte_timeout_s=60)
with streamer.stream(uri, group=torch.distributed.group.WORLD, progress=False, options=options) as tensors:
    for _ in tensors:
        if rank and is_late:
            sys.stdin.readline()
"""


@contextmanager
def two_ranks(uri: str, folder: Path, begins: str = "") -> Iterator[list[subprocess.Popen[str]]]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(number), str(folder / "meeting"), uri, begins],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        assert [each.stdout and each.stdout.readline() for each in ranks] == ["joined\n"] * 2
        yield ranks
    finally:
        for each in ranks:
            each.kill()
            each.communicate()


def test_a_rank_names_the_one_that_is_late_or_busy(checkpoint: str, tmp_path: Path) -> None:
    with two_ranks(checkpoint, tmp_path, "late") as ranks:
        line = line_of(ranks[0].pid, lambda each: "waits for other ranks" in each["found"])
        assert line["name"] == "rank 0 of the group (2 ranks)"
        go_on(ranks[1])
        line_of(ranks[0].pid, lambda each: f"waits for rank 1 (process {ranks[1].pid})" in each["found"])
        line = line_of(ranks[0].pid, lambda each: "consumer took tensors" in each["found"])
        assert line["name"] == f"process {ranks[1].pid}: {checkpoint}"
        ranks[1].communicate("\n" * len(WEIGHTS), timeout=60)
        assert ranks[0].wait(60) == 0


def test_ranks_wait_for_the_one_that_locates_and_then_for_the_one_that_reads(tmp_path: Path) -> None:
    located, answered, last = threading.Event(), threading.Event(), len(save(WEIGHTS)) - 1

    def hang(request: Request) -> None:
        located.wait(60)
        if request.begin and request.end > last:
            answered.wait(60)

    with hanging(hang) as uri, two_ranks(uri, tmp_path) as ranks:
        line_of(ranks[0].pid, lambda each: "locates the checkpoint" in each["found"] and each["name"] == uri)
        (listed,) = [each for each in run("ps") if each["pid"] == ranks[0].pid]
        assert [load["stage"] for load in listed["loads"]] == ["locating"]
        line = line_of(ranks[1].pid, lambda each: f"waits for rank 0 (process {ranks[0].pid})" in each["found"])
        assert line["name"] == "rank 1 of the group (2 ranks)"
        located.set()
        line = line_of(ranks[0].pid, lambda each: f"waits for rank 1 (process {ranks[1].pid})" in each["found"])
        assert line["name"] == uri
        assert line_of(ranks[0].pid, lambda each: each["name"] == f"process {ranks[1].pid}: {uri}")
        answered.set()
        assert [each.wait(60) for each in ranks] == [0, 0]


def test_the_page_is_this_users_alone_and_goes_with_its_process(checkpoint: str) -> None:
    with loading(checkpoint) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        page = load_status.page_of(child.pid)
        status = page.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, load_status.PAGE_BYTES)
        assert status.st_blocks * 512 >= load_status.PAGE_BYTES  # or a full /dev/shm would end the process
        child.kill()
        child.wait()
        assert page.exists()  # it was killed
        assert child.pid not in [each["pid"] for each in run("ps")]
        assert not page.exists()
    code = f"import streamer; streamer.load({checkpoint!r}, framework='np'); from streamer.core import load_status as s"
    ended = f"{code}; import os; print(s.page_of(os.getpid()), s.page_of(os.getpid()).exists())"
    done = subprocess.run([sys.executable, "-c", ended], capture_output=True, text=True, check=True)
    path, existed = done.stdout.split()
    assert (existed, os.path.exists(path)) == ("True", False)


def test_a_load_that_lacks_memory_is_named_with_the_word_of_its_report_regression(checkpoint: str) -> None:
    facts = {"uri": checkpoint, "total_bytes": 100, "bound_by": {"memory": 0.9, "store": 0.1}}
    before, after = (
        load_status.Load(0, load_status.READING, time.monotonic(), {**facts, "done_bytes": n}) for n in (1, 50)
    )
    line = running._finding(before, after, [])
    assert (line.state, "bound so far by memory 90 %, store 10 %" in line.found) == ("slow", True)
    assert "raise memory_limit_bytes" in line.advice
    assert running._finding(after, after._replace(since=0.0), []).state == "broken"  # nothing arrives


def test_a_process_without_loads_is_unknown() -> None:
    assert run("doctor", "--pid", 1)["findings"][0]["state"] == "unknown"


def test_without_shared_memory_a_load_loads(checkpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load_status, "FOLDER", tmp_path / "absent")
    monkeypatch.setattr(load_status, "_PAGES", load_status._Pages())
    assert set(streamer.load(checkpoint, framework="np", progress=False)) == set(WEIGHTS)


def test_slots_are_free_again_after_many_loads(checkpoint: str) -> None:
    for _ in range(3 * load_status.SLOTS):
        streamer.load(checkpoint, framework="np", progress=False)
    mine = load_status.read_page(load_status.page_of(os.getpid()).read_bytes())
    assert mine is not None
    assert mine[1] == []


def test_the_page_costs_less_than_a_hundredth_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured: the processor time in the functions of the page, divided by that of the whole loads."""
    weights = {f"w{number}": torch.zeros(256, 1024) for number in range(64)}
    streamer.save(weights, tmp_path / "model", progress=False)
    spent = [0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                spent[0] += time.thread_time_ns() - began

        return call

    for name in ("__init__", "enter", "update", "note", "close"):
        monkeypatch.setattr(load_status.LoadStatus, name, timed(getattr(load_status.LoadStatus, name)))
    streamer.load(tmp_path / "model", progress=False)
    shares = [1.0]
    while min(shares) >= 0.01 and len(shares) < 100:  # other programs take the processor's caches
        spent[0], began = 0, time.process_time_ns()
        streamer.load(tmp_path / "model", progress=False)
        shares.append(spent[0] / (time.process_time_ns() - began))
    assert min(shares) < 0.01, shares
