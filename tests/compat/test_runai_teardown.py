"""Run:ai's C interface is ended while it reads: nobody waits, and nothing is written afterwards."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
from runai_calls import Started, Wanted
from servers.gated_files import GatedFileSystem
from servers.scripted_http import Answer, Request, ScriptedServer

SUCCESS, FINISHED = 0, 1
SIZE = 8 << 20
LONGEST_END_S = 15.0  # a second, on a machine that does nothing else


class GatedFiles(GatedFileSystem):
    """``gated://weights``, whose bytes come when the gate is open."""

    protocol = "gated"
    is_reading, gate = threading.Event(), threading.Event()  # of all instances

    def __init__(self) -> None:
        super().__init__()
        del self.is_reading, self.gate
        self.pipe_file("/weights", b"x" * SIZE)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("gated://", "memory://"))


def ended_while_somebody_waits(streamer: Started) -> tuple[int, float]:
    """End a streamer in another thread's wait; give what that got, and how long the end took."""
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(streamer.response(0).code))
    waiting.start()
    began = time.monotonic()
    streamer.end()
    seconds = time.monotonic() - began
    waiting.join()
    return codes[0], seconds


def test_the_end_stops_a_read_from_a_server_that_hangs() -> None:
    is_reading = threading.Event()

    def hang(request: Request, answer: Answer) -> None:
        if request.end - request.begin > 1000:
            is_reading.set()
            answer.sent_bytes = 1000
            server.stopping.wait(60)

    buffer = ctypes.create_string_buffer(SIZE)
    with ScriptedServer(bytes(range(256)) * (SIZE // 256), hang) as server:
        streamer = Started()
        for part in range(4):  # two are read, and two wait
            at = ctypes.addressof(buffer) + part * SIZE // 4
            streamer.submit({server.url: [Wanted(part * SIZE // 4, SIZE // 4, at)]})
        assert is_reading.wait(30)
        code, seconds = ended_while_somebody_waits(streamer)
        assert code == FINISHED
        assert seconds < LONGEST_END_S
        left = buffer.raw
        server.stopping.set()  # the server answers now
    assert buffer.raw == left


def test_a_call_of_python_that_returns_after_the_end_writes_nothing_to_the_callers_memory() -> None:
    fsspec.register_implementation("gated", GatedFiles, clobber=True)
    buffer = ctypes.create_string_buffer(SIZE)
    streamer = Started()
    streamer.submit({"gated://weights": [Wanted(1, SIZE - 1, ctypes.addressof(buffer))]})
    assert GatedFiles.is_reading.wait(30)
    code, seconds = ended_while_somebody_waits(streamer)
    assert code == FINISHED
    assert seconds < LONGEST_END_S
    GatedFiles.gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("streamer"):
            thread.join(30)
    assert buffer.raw == bytes(SIZE)


def test_ctrl_c_ends_the_wait_for_a_response() -> None:
    code = f"""
        import _thread, sys, threading
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from runai_calls import started
        with started() as streamer:
            threading.Timer(0.5, _thread.interrupt_main).start()
            try:
                streamer.response(0)
            except KeyboardInterrupt:
                print("interrupted")
    """
    lines = "\n".join(line[8:] for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_forked_child_begins_with_no_streamer_and_can_start_one(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "file")
    with open(file, "wb") as written:
        written.write(b"abcdefgh")
    streamer = Started()
    child = os.fork()
    if child == 0:
        try:
            buffer = ctypes.create_string_buffer(8)
            own_code = streamer.response(0).code
            streamer.end()
            another = Started()
            another.submit({file: [Wanted(0, 8, ctypes.addressof(buffer))]})
            is_good = own_code == FINISHED and another.response().code == SUCCESS and buffer.raw == b"abcdefgh"
            another.end()
            os._exit(0 if is_good else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    streamer.end()
