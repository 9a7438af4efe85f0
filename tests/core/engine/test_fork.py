"""A forked child can load, whatever the threads of its parent were doing; one that hangs is ended by SIGALRM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from contextlib import contextmanager

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.numpy import save_file
from servers.scripted_http import ScriptedServer

import streamer
from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.exchange import send
from streamer.backends.fsspec import reads as fsspec_reads
from streamer.backends.http import stream as http_stream
from streamer.core.errors import EngineError
from streamer.core.options.limits import Limits
from streamer.core.store.sources import HttpSource

LOADS = """
    import os, signal, sys, threading
    from streamer import Options
    from streamer.core.engine.plan import Item, plan_reads
    from streamer.core.engine.session import ReadSession, SourceObject
    from streamer.core.options.settings import resolve
    from streamer.core.store.sources import FileSource

    SIZE, CUT = 40_000_000, 4_000_000  # large enough for mappings of the arena's own
    plan = plan_reads([Item(0, begin, begin + CUT) for begin in range(0, SIZE, CUT)], 0)
    settings = resolve(Options(memory_limit_bytes=2 * CUT, block_bytes=1 << 20))

    def load():
        session = ReadSession([SourceObject("x", FileSource(sys.argv[1]), SIZE)], plan, settings)
        while items := session.next_items():
            for item in items:
                assert bytes(memoryview(session.take(item))[:1]) == b"x"

    load()  # and what Python imports on first use: its locks of modules no child gets rid of
    is_over = threading.Event()
    def load_on():
        while not is_over.is_set():
            load()

    others = [threading.Thread(target=load_on) for _ in range(2)]
    for other in others:
        other.start()
    ends = set()
    for _ in range(25):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            load()
            os._exit(0)
        ends.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    is_over.set()
    for other in others:
        other.join()
    print(ends)
"""


def test_children_load_while_threads_of_their_parent_load(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * 40_000_000)
    command = [sys.executable, "-c", textwrap.dedent(LOADS), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout.strip(), done.returncode) == ("{0}", 0), done.stderr


@contextmanager
def held_by_another_thread(lock, *, until):
    """Let a thread hold a lock until somebody says so, or for a moment."""
    is_held = threading.Event()

    def hold():
        with lock:
            is_held.set()
            until.wait(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(20)
    yield
    until.set()
    holder.join()


def run_in_child(work):
    """Run it in a child; what it raises there fails the test."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a time-out of pytest's may have it
        signal.alarm(10)
        try:
            work()
            os._exit(0)
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4096:])
        finally:
            os._exit(1)
    os.close(writer)
    end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(reader) as raised:
        assert end == 0, raised.read()


@pytest.mark.parametrize("guard", [fsspec_reads._locks_guard, http_stream._open_guard], ids=["fsspec", "http"])
def test_no_child_inherits_a_lock_of_the_process_that_another_thread_holds_regression(guard):
    with held_by_another_thread(guard, until=threading.Event()):
        run_in_child(guard.acquire)
    assert not guard.locked()


def test_no_child_waits_for_a_file_system_that_a_thread_of_its_parent_reads_regression():
    fs = MemoryFileSystem()
    with held_by_another_thread(fsspec_reads._lock_of(fs), until=threading.Event()):
        run_in_child(lambda: fsspec_reads._lock_of(fs).__enter__())


def test_a_child_reads_from_a_checkpoint_of_its_parent(tmp_path):
    save_file({"a": np.arange(4, dtype=np.float32)}, tmp_path / "model.safetensors")
    with streamer.open(str(tmp_path / "model.safetensors"), framework="np") as checkpoint:
        assert checkpoint.get_slice("a")[:2].tolist() == [0, 1]

        def read():
            assert checkpoint.get_slice("a")[2:].tolist() == [2, 3]

        run_in_child(read)


@pytest.mark.parametrize("trace", ["", "trace.json"])
def test_whatever_a_child_asks_of_its_parents_stream_the_error_is_of_the_tree_regression(tmp_path, trace):
    """`report` told the engine's own error, which no documentation knows; a traced stream could not be closed."""
    save_file({"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    options = streamer.Options(trace=trace and tmp_path / trace)
    stream = streamer.stream(str(tmp_path / "model.safetensors"), framework="numpy", options=options)
    next(stream)

    def ask():
        for question in (lambda: stream.report, lambda: next(stream)):
            with pytest.raises(EngineError, match="parent process"):
                question()
        stream.close()

    run_in_child(ask)
    stream.close()


def test_a_child_takes_no_byte_of_its_parents_answer():
    """Both would read from one socket, and each would miss what the other took."""
    data = os.urandom(4 << 20)

    def whole(request, answer):
        answer.become(200, data)

    with ScriptedServer(data, whole) as server:
        response = send(HttpSource(server.url), answer_times(Limits()))
        got = bytearray(len(data))
        view = memoryview(got)
        assert response.read_into(view[:1000], 10) == 1000

        def read_in_child():
            with pytest.raises(streamer.StorageError):
                response.read_into(memoryview(bytearray(1000)), 10)
            response.close()

        run_in_child(read_in_child)
        assert response.read_into(view[1000:], 30) == len(data) - 1000
    assert bytes(got) == data
