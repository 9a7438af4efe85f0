"""Whoever gives up a load, by whatever means and at whatever point, is free within a second, and nothing is left."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from servers.background import begun

import streamer
from faults.cancel_points import POINTS, Load
from streamer import _native

LIMIT_S = 8.0  # a tenth of a second on an idle machine; what is not given up waits for 20 s or more
LATER_S = 0.05  # from reaching the point to giving up: long enough to be inside the wait
ASKING = ("streamer-info", "streamer-source", "streamer-locate")
TESTS = Path(__file__).resolve().parents[1]
BEGINNING = [  # points at which reading goes on in the background
    "waiting_for_the_first_block",
    "in_the_middle_of_a_block",
    "waiting_for_the_last_block",
    "waiting_for_a_retry",
    "waiting_for_a_throttled_server",
    "in_the_tls_handshake",
    "while_connecting",
    "in_a_python_source",
    "waiting_for_memory",
]


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of two shards, named by an index; the listing of its folder does not show them."""
    root = tmp_path / "bucket"
    (root / "sub").mkdir(parents=True)
    for number in range(2):
        save_file({f"t{number}": np.full(150_000, number, np.float32)}, root / "sub" / f"m-{number}.safetensors")
    index = {"weight_map": {f"t{number}": f"sub/m-{number}.safetensors" for number in range(2)}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    return root


@pytest.fixture(autouse=True)
def _requests_under_way_end():
    """A thread that asks for one object ends with its request, which botocore makes five times, with pauses."""
    yield
    deadline = time.monotonic() + 60
    while any(thread.name.startswith(ASKING) for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def at(name: str, folder: Path) -> Iterator[Load]:
    """Make a load that will stop at a point; afterwards the engine holds no more than before."""
    gc.collect()  # what an earlier test left in a cycle would hide as much of ours
    held = _native.arena_stats()["held_bytes"]
    load = POINTS[name](folder)
    try:
        yield load
    finally:
        load.stop()
    gc.collect()
    deadline = time.monotonic() + 5  # a Python source lets go of its block when it comes back
    while _native.arena_stats()["held_bytes"] > held and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _native.arena_stats()["held_bytes"] <= held  # less where what an earlier test left came back meanwhile


def native_threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread ended meanwhile
            names.append(path.read_text().strip())
    return [name for name in names if name.startswith(("streamer-http", "streamer-file", "streamer-nfs"))]


def wait_until_stuck(load: Load) -> None:
    assert load.reached.wait(20)
    time.sleep(LATER_S)


def test_the_table_has_seventeen_points() -> None:
    assert len(POINTS) == 17


@pytest.mark.parametrize("name", POINTS)
def test_ctrl_c_ends_a_load(name: str, folder: Path) -> None:
    given_up_at = []

    def give_up() -> None:
        wait_until_stuck(load)
        given_up_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where run in the background
    try:
        with at(name, folder) as load:
            with pytest.raises(KeyboardInterrupt), begun(threading.Thread(target=give_up)):
                load.run()
            assert time.monotonic() - given_up_at[0] < LIMIT_S
            assert native_threads() == []
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("name", BEGINNING)
def test_closing_ends_a_load_and_wakes_its_consumer(name: str, folder: Path) -> None:
    with at(name, folder) as load:
        assert load.begin is not None
        stream, ended = load.begin(), []

        def consume() -> None:
            try:
                for _ in stream:
                    pass
            except streamer.LoadCancelledError:
                ended.append(time.monotonic())

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until_stuck(load)
        started = time.monotonic()
        stream.close()
        consumer.join(10)
        assert ended[0] - started < LIMIT_S
        assert native_threads() == []


@pytest.mark.parametrize("name", BEGINNING)
def test_an_exception_of_the_consumer_ends_a_load(name: str, folder: Path) -> None:
    with at(name, folder) as load:
        assert load.begin is not None

        def consume() -> None:
            stream = load.begin()  # type: ignore[misc]
            try:
                wait_until_stuck(load)
                raise ZeroDivisionError
            finally:
                stream.close()

        with pytest.raises(ZeroDivisionError):
            consume()
        assert native_threads() == []


@pytest.mark.parametrize("name", BEGINNING)
def test_letting_go_of_a_stream_ends_its_load(name: str, folder: Path) -> None:
    with at(name, folder) as load:
        assert load.begin is not None
        stream = load.begin()
        wait_until_stuck(load)
        gc.collect()
        started = time.monotonic()
        del stream
        gc.collect()
        ended = time.monotonic()
        assert ended - started < LIMIT_S
        assert native_threads() == []


@pytest.mark.parametrize("way", ["exception", "break", "last"])
def test_leaving_the_loop_ends_a_load(folder: Path, way: str) -> None:
    """In the consumer's own loop, and behind its last tensor."""
    gc.collect()
    held = _native.arena_stats()["held_bytes"]
    seen = []
    try:
        with streamer.stream(folder, framework="np", progress=False) as stream:
            for name, array in stream:
                seen.append((name, int(array[0])))
                if way == "exception":
                    raise ZeroDivisionError
                if way == "break" or len(seen) == 2:
                    break
    except ZeroDivisionError:
        pass
    assert len(seen) == (2 if way == "last" else 1)
    assert native_threads() == []
    assert _native.arena_stats()["held_bytes"] <= held  # as in `at`


EXIT = """
import sys, time
from pathlib import Path
from faults.cancel_points import POINTS

load = POINTS[sys.argv[1]](Path(sys.argv[2]))
stream = load.begin()
assert load.reached.wait(20)
time.sleep(0.05)
if sys.argv[3] == "a closed stream":
    stream.close()
print(time.time(), flush=True)
if sys.argv[3] == "sys.exit":
    sys.exit(3)
"""


@pytest.mark.parametrize("name", BEGINNING)
def test_the_interpreter_exits_in_the_middle_of_a_load(name: str, folder: Path) -> None:
    # The teardown of numpy and its friends takes a busy machine seconds: what an interpreter without a load takes, too.
    without_s = seconds_to_exit(name, folder, "a closed stream", 0)
    for way, code in (("the end of the program", 0), ("sys.exit", 3)):
        assert seconds_to_exit(name, folder, way, code) < LIMIT_S + 2 * without_s, way


def seconds_to_exit(name: str, folder: Path, way: str, code: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, name, str(folder), way],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ended = time.time()
    assert (done.returncode, done.stderr) == (code, ""), way
    return ended - float(done.stdout)
