"""A trace shows what a load did, names what bounded it, stays bounded, holds no secret, and never fails a load."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer._pull.pull import PullArguments, pull
from streamer._push.push import Target, push
from streamer.core.bounds import bounds_text
from streamer.core.trace import file as trace_file
from streamer.core.trace import tracer as tracers

CATEGORIES = {
    "request",
    "read",
    "verify",
    "decode",
    "copy",
    "allocate",
    "hand_over",
    "consumer",
    "wait",
    "locate",
    "shared",
}
CANARY = "C4n4ryS3cr3tXyz"
HELD_S = 0.5  # much longer than anything else in these loads takes
TENSORS = {f"{number}.weight": np.full(80_000, number, np.float32) for number in range(5)}
DATA = save(TENSORS)
HEADER_BYTES = 64 << 10


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "load.json"


@pytest.fixture
def model(tmp_path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def load(uri: Any, path: Path, *, storage_options: Any = None, verify: Any = None, **options: Any) -> None:
    how = streamer.Options(trace=path, **options)
    streamer.load(uri, framework="np", options=how, storage_options=storage_options, verify=verify, progress=False)


def checked(path: Path) -> dict[str, Any]:
    """Read a trace, and check what a viewer relies on."""
    trace: dict[str, Any] = json.loads(path.read_text())
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        lane = event["pid"], event["tid"]
        if event["ph"] == "M":
            named.add(lane)
            assert event["name"] in ("process_name", "thread_name")
        else:
            assert event["ph"] in "Xi"
            lanes[lane].append(event)
    assert set(lanes) <= named
    for events in lanes.values():
        times = [event["ts"] for event in events]
        assert times == sorted(times)
        check_nested([(event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X"])
    assert {event["cat"] for event in spans(trace)} <= CATEGORIES | {"write", "upload"}
    return trace


def check_nested(times: list[tuple[int, int]]) -> None:
    """Check that of two events of a lane one is in the other, or after it, up to a rounding."""
    rounding_us, open_until = 2, list[int]()
    for begin, end in sorted(times, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= begin + rounding_us:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + rounding_us
        open_until.append(end)


def spans(trace: dict[str, Any], category: str | None = None) -> list[dict[str, Any]]:
    return [each for each in trace["traceEvents"] if each["ph"] == "X" and category in (None, each["cat"])]


def shares(trace: dict[str, Any]) -> dict[str, float]:
    return {each["what"]: each["share"] for each in trace["otherData"]["bound_by"]}


def test_a_load_over_a_network_shows_each_request_with_its_phases(path):
    with ScriptedServer(DATA) as server:
        load(server.url, path, block_bytes=256 << 10)
        asked = len([each for each in server.requests if "range" in each.headers])
    trace = checked(path)
    requests = spans(trace, "request")
    assert len(requests) >= asked - 2  # the first look-ups are made by the store
    for request in requests:
        args = request["args"]
        assert args["object"].endswith("/object")
        assert (args["attempt"], args["status"]) == (1, 206)
        assert sum(args[phase] for phase in tracers.PHASES) <= request["dur"] + 100_000
    assert any(not each["args"]["connection_reused"] for each in requests)
    assert sum(each["args"]["bytes"] for each in requests) >= sum(each.nbytes for each in TENSORS.values())
    assert spans(trace, "locate")
    assert spans(trace, "wait")
    assert trace["otherData"]["product"] == "streamer"
    assert trace["otherData"]["is_complete"] is True
    assert trace["otherData"]["bytes"] == sum(each.nbytes for each in TENSORS.values())


def test_a_load_of_files_shows_its_reads_and_digests(path, model):
    streamer.write_manifest(model)
    load(model, path, verify="manifest")
    trace = checked(path)
    assert spans(trace, "read")
    assert spans(trace, "verify")


def test_a_server_that_pauses_is_named(path):
    def pause(request, answer):
        if request.begin > HEADER_BYTES:
            server.stopping.wait(HELD_S)

    with ScriptedServer(DATA, pause) as server:
        load(server.url, path, block_bytes=256 << 10)
    found = shares(checked(path))
    assert found["store"] > max(found.get("consumer", 0), found.get("memory", 0), found.get("disk", 0))


def test_a_slow_consumer_is_named_in_the_report_and_the_trace(path, model, caplog):
    caplog.set_level(logging.INFO, logger="streamer")
    never, options = threading.Event(), streamer.Options(trace=path)
    with streamer.stream(model, framework="np", options=options, progress=False) as stream:
        next(stream)
        never.wait(HELD_S)
        for _ in stream:
            pass
    found = shares(checked(path))
    assert found["consumer"] > found.get("disk", 0)
    assert found == stream.report.bound_by
    assert f"bound by {bounds_text(found)}" in caplog.text
    assert checked(path)["otherData"]["advice"]


def test_too_little_memory_is_named(path, tmp_path):
    def pause(request, answer):
        if request.begin > HEADER_BYTES:
            server.stopping.wait(HELD_S / 5)

    other = tmp_path / "other.json"
    with ScriptedServer(DATA, pause) as server:
        load(server.url, path, memory_limit_bytes=1)
        load(server.url, other)
    little, enough = shares(checked(path)), shares(checked(other))
    assert little["memory"] > little.get("store", 0)
    assert enough["store"] > enough.get("memory", 0)


def test_saves_and_copies_are_traced(path, model, tmp_path):
    options = streamer.Options(trace=path)
    streamer.save(TENSORS, tmp_path / "saved", options=options, progress=False)
    assert {each["cat"] for each in spans(checked(path))} == {"upload"}
    pull(str(model), str(tmp_path / "pulled"), PullArguments(options=options), progress=False, on_wait=print)
    push(str(model), Target(str(tmp_path / "pushed")), PullArguments(options=options), progress=False)
    trace = checked(path)
    assert sum(each["args"]["bytes"] for each in spans(trace, "write")) == model.stat().st_size
    loads = trace["otherData"]["processes"][0]["loads"]
    assert [each["kind"] for each in loads] == ["save", "pull", "push"]
    assert all(each["is_complete"] and each["bytes"] for each in loads)


def test_the_number_of_events_is_bounded_and_the_rest_is_counted(path, model, monkeypatch):
    monkeypatch.setattr(tracers, "MOST_EVENTS", 10)
    options = streamer.Options(trace=path, block_bytes=64 << 10)
    with streamer.stream(model, framework="np", options=options, progress=False) as stream:
        list(stream)
    trace = checked(path)
    assert len([each for each in trace["traceEvents"] if each["ph"] != "M"]) <= 10
    assert trace["otherData"]["dropped_events"] > 0
    assert any("room for 10 events" in remark for remark in stream.report.remarks)


def test_loads_of_a_process_are_in_one_file_and_a_trace_of_an_earlier_run_is_replaced(path, model):
    earlier = {"id": "0", "pid": 1, "process_began_us": 1, "ended_us": 2, "dropped_events": 0, "loads": []}
    trace_file.add(str(path), trace_file.Part(earlier, ['"tid": 1, "ph": "i", "ts": 1, "name": "old"}']), 10, _summary)
    load(model, path)
    load(model, path)
    trace = checked(path)
    assert len(trace["otherData"]["processes"]) == 1
    assert len(trace["otherData"]["processes"][0]["loads"]) == 2


def _summary(processes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"processes": processes}


LOAD = """
import sys, streamer
print("ready", flush=True); sys.stdin.readline()
streamer.load(sys.argv[1], framework="np", progress=False)
"""


def test_processes_of_a_machine_write_one_file(path, model, monkeypatch):
    monkeypatch.setenv("STREAMER_TRACE", str(path))
    ranks = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        command = [sys.executable, "-c", LOAD, str(model)]
        ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for rank in ranks:
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        rank.communicate("go\n", timeout=120)
        assert rank.returncode == 0
    trace = checked(path)
    names = [each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"]
    assert sorted(names) == [f"rank {number}, pid {rank.pid}" for number, rank in enumerate(ranks)]
    assert sum(len(each["loads"]) for each in trace["otherData"]["processes"]) == 3


def test_containers_with_equal_process_numbers_keep_apart(path):
    for name in "ab":
        facts = {"id": name, "pid": 7, "process_began_us": 1, "ended_us": 9, "dropped_events": 0, "loads": []}
        trace_file.add(
            str(path), trace_file.Part(facts, [f'"tid": 1, "ph": "i", "ts": 1, "name": "{name}"}}']), 9, _summary
        )
    events = json.loads(path.read_text())["traceEvents"]
    assert sorted((each["pid"], each["name"]) for each in events) == [(7, "a"), (8, "b")]


KILLED = """
import sys, streamer
from streamer.core.trace import tracer
tracer.WRITTEN_EVERY_S = tracer.WRITES_SHARE = 0
streamer.load(sys.argv[1], framework="np", progress=False)
"""


def test_a_process_that_is_killed_leaves_a_trace_of_what_it_did(path, monkeypatch):
    monkeypatch.setenv("STREAMER_TRACE", str(path))

    def hold(request, answer):
        if request.end == len(DATA) and request.begin > 0:
            server.stopping.wait(120)

    with ScriptedServer(DATA, hold) as server:
        process = subprocess.Popen([sys.executable, "-c", KILLED, server.url])
        while process.poll() is None and not (path.exists() and len(spans(checked(path), "request")) > 1):
            server.stopping.wait(0.02)
        process.kill()
        process.wait()
        server.stopping.set()
    assert spans(checked(path), "locate")


SECRETS = {
    "query": lambda url: (f"{url}?X-Amz-Signature={CANARY}", None),
    "user": lambda url: (url.replace("://", f"://user:{CANARY}@"), None),
    "header": lambda url: (url, {"headers": {"Authorization": f"Bearer {CANARY}"}}),
}


@pytest.mark.usefixtures("short_pauses")
@each_row(
    ("secret", "fault"), [("query", "403"), ("user", "500"), ("header", "cut"), ("query", "none"), ("user", "none")]
)
def test_no_secret_is_in_a_trace(tmp_path, secret, fault):
    def fail(request, answer):
        if request.begin < HEADER_BYTES:
            return
        if fault == "cut":
            answer.sent_bytes = 10
        elif fault != "none":
            answer.become(int(fault), f"<Error><Message>{CANARY}</Message></Error>".encode())

    path = tmp_path / f"{secret}-{fault}.json"
    with ScriptedServer(DATA, fail) as server:
        uri, options = SECRETS[secret](server.url)
        seconds = 60 if fault == "none" else 0.5
        try:
            load(uri, path, storage_options=options, max_attempts=2, block_deadline_s=seconds, block_bytes=256 << 10)
        except streamer.StreamerError:
            assert fault != "none"
    assert CANARY not in path.read_text()
    trace = checked(path)
    assert trace["otherData"]["is_complete"] is (fault == "none")
    failures = [each["name"] for each in trace["traceEvents"] if each["ph"] == "i"]
    assert bool(failures) is (fault != "none")


def test_a_path_that_cannot_be_is_refused_before_the_load(tmp_path, model):
    with ScriptedServer(DATA) as server:
        for path in (tmp_path, tmp_path / "none" / "load.json", model, "s3://bucket/load.json"):
            with pytest.raises(streamer.OptionError, match="trace"):
                load(server.url, path)
        assert not server.requests
    assert model.read_bytes()[:8] == save(TENSORS)[:8]


def test_what_is_no_regular_file_is_refused_and_stays_and_a_link_is_followed_regression(tmp_path, model):
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a writer; a rename would replace it, as it did /dev/null
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", "to-fifo", "loop"):
        with pytest.raises(streamer.OptionError, match="is no regular file"):
            load(model, tmp_path / name)
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)
    link, path = tmp_path / "link.json", tmp_path / "load.json"
    link.symlink_to("load.json")
    load(model, link)
    assert link.is_symlink()
    assert spans(checked(path), "read")


def test_blocks_that_come_from_shared_memory_are_no_requests_regression(path):
    with ScriptedServer(DATA) as server:
        load(server.url, path, share="node", block_bytes=256 << 10)
    trace = checked(path)
    assert sum(each["args"]["bytes"] for each in spans(trace, "request")) < len(DATA) + 2 * HEADER_BYTES
    assert sum(each["args"]["bytes"] for each in spans(trace, "shared")) == sum(
        each.nbytes for each in TENSORS.values()
    )
    assert not any(phase in each["args"] for each in spans(trace, "shared") for phase in tracers.PHASES)


@pytest.mark.parametrize("change", ["absent", "cut"])
def test_a_load_that_fails_before_a_tensor_is_read_is_in_the_trace_once_regression(tmp_path, change):
    def fail(request, answer):
        if change == "absent":
            answer.become(404)

    path = tmp_path / f"{change}.json"
    with (
        ScriptedServer(DATA[:1000] if change == "cut" else DATA, fail) as server,
        pytest.raises(streamer.StreamerError),
    ):
        load(server.url, path)
    trace = checked(path)
    facts = {name: trace["otherData"][name] for name in ("uri", "kind", "bytes", "is_complete", "advice")}
    assert facts == {"uri": server.url, "kind": "load", "bytes": 0, "is_complete": False, "advice": ""}
    assert len(trace["otherData"]["processes"][0]["loads"]) == 1


def test_requests_that_the_end_of_a_load_cancels_did_not_fail_regression(path):
    is_asked = threading.Event()

    def hold(request, answer):
        if request.begin > 2 * HEADER_BYTES:
            is_asked.set()
            server.stopping.wait(120)

    options = streamer.Options(trace=path, block_bytes=HEADER_BYTES * 2)
    with ScriptedServer(DATA, hold) as server:
        stream = streamer.stream(server.url, framework="np", options=options, progress=False)
        assert is_asked.wait(60)
        stream.close()
    notes = {each["name"] for each in checked(path)["traceEvents"] if each["ph"] == "i"}
    assert notes == {"request cancelled"}


@pytest.mark.parametrize("at", ["the beginning", "the end"])
def test_a_full_disk_fails_no_load_and_is_logged_once(path, model, monkeypatch, caplog, at):
    if at == "the end":
        load(model, path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_file.LockedDraft, "take", full)
    for _ in range(2):
        load(model, path)
    assert [each.getMessage() for each in caplog.records if "No space left" in each.getMessage()] == [
        f"the trace {path} is not complete: [Errno 28] No space left on device"
    ]
    monkeypatch.undo()
    tracers._TRACERS[str(path)].write()
    assert len(checked(path)["otherData"]["processes"][0]["loads"]) == (3 if at == "the end" else 2)


class _Engine:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def take_trace(self) -> tuple[list[tuple[Any, ...]], int]:
        return self.rows, 0


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 99), st.integers(0, 99)), max_size=9),
        max_size=3,
    )
)
def test_no_two_events_of_an_engine_overlap_on_a_lane(tmp_path_factory, takes):
    tracer = tracers.Tracer(str(tmp_path_factory.mktemp("lanes") / "load.json"), 1000, None)
    for times in takes:
        rows = [
            ("read", thread, overlaps, begin, begin + length, 0, 0, 1, 0, 0, False, [0] * 5, "")
            for thread, overlaps, begin, length in times
        ]
        tracer.native(_Engine(rows), ["model"])
    tracer.write()
    assert len(spans(checked(Path(tracer.path)))) == sum(map(len, takes))
