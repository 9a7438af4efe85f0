"""How many event loops read over HTTP, and how many requests each may have under way."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from struct import pack

import fsspec
import pytest
import torch
from comparison import assert_same
from each_row import each_row
from safetensors.torch import save_file
from servers.nginx import NginxServer
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options
from streamer.core.engine import tuning
from streamer.core.engine.tuning import HttpReading, choose_http_reading
from streamer.core.format.header import parse_header
from streamer.core.options.settings import resolve

GIB = 1 << 30


@each_row(
    ("processors", "wanted_bytes", "expected"),
    [
        (1, 100 * GIB, HttpReading(1, 64)),
        (2, 100 * GIB, HttpReading(2, 64)),
        (192, 100 * GIB, HttpReading(64, 16)),
        (192, 4 * GIB, HttpReading(8, 64)),
        (192, GIB, HttpReading(4, 64)),
        (192, 1, HttpReading(4, 64)),
    ],
)
def test_loops_follow_the_processors_and_the_size(monkeypatch, processors, wanted_bytes, expected):
    monkeypatch.setattr(tuning, "processors", lambda: processors)
    assert choose_http_reading(resolve(Options()), wanted_bytes, 1000) == expected


def test_what_the_user_set_is_taken():
    settings = resolve(Options(http_reactors=64, http_in_flight=100))
    assert choose_http_reading(settings, 1, 1000) == HttpReading(64, 100)


def test_all_loops_together_ask_for_a_limited_number():
    assert choose_http_reading(resolve(Options(http_reactors=64)), 1, 1000) == HttpReading(64, 16)


def test_no_loop_is_made_without_a_block_for_it():
    assert choose_http_reading(resolve(Options(http_reactors=8)), 1, 3) == HttpReading(3, 3)


# --- A header of very many tensors costs memory and time in proportion, and neither is much -------------------------

TENSORS = 100_000
MEMORY_FACTOR = 10  # times the header
CPU_S = 2.0  # for a tenth of a million: ten times the promise, for a machine that does other things too


@pytest.fixture(scope="module")
def header():
    members = ",".join(
        f'"layers.{index // 100}.weight_{index % 100}":'
        f'{{"dtype":"BF16","shape":[2,4],"data_offsets":[{16 * index},{16 * index + 16}]}}'
        for index in range(TENSORS)
    )
    text = f"{{{members}}}".encode()
    return pack("<Q", len(text)) + text


def test_memory_is_in_proportion_to_the_header(header):
    tracemalloc.start()
    try:
        parsed = parse_header(header, len(header) + 16 * TENSORS, uri="x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(parsed.entries) == TENSORS
    assert peak <= MEMORY_FACTOR * len(header)


def test_time_is_in_proportion_to_the_header(header):
    started = time.process_time()
    parse_header(header, len(header) + 16 * TENSORS, uri="x")
    assert time.process_time() - started < CPU_S


# --- `Options(max_bytes_per_second=…)`: a load of any storage takes as long as its bytes do at that rate, or l ---

BYTES = 3 << 20
PER_SECOND = 4 << 20


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    """Of equal bytes, in many tensors."""
    return {f"{i:02}": torch.full((BYTES // 12,), i, dtype=torch.uint8) for i in range(12)}


@pytest.fixture(params=["file", "http", "memory"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, tensors: dict[str, torch.Tensor], http_server: NginxServer
) -> str:
    """The checkpoint, read by file threads, by reactors, or by Python threads."""
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    if request.param == "http":
        path = Path(http_server.root) / path.name
        save_file(tensors, path)
        os.utime(path, (0, 0))  # a load waits until a file of this second is settled
        return f"http://127.0.0.1:{http_server.http_port}/open/{path.name}"
    if request.param == "memory":
        fsspec.filesystem("memory").pipe_file("/limited.safetensors", path.read_bytes())
        return "memory://limited.safetensors"
    return str(path)


def test_a_load_takes_no_more_a_second(uri: str, tensors: dict[str, torch.Tensor]) -> None:
    options = streamer.Options(max_bytes_per_second=PER_SECOND, block_bytes=256 << 10)
    started = time.monotonic()
    loaded = streamer.load(uri, options=options)
    assert time.monotonic() - started > 0.8 * BYTES / PER_SECOND  # the first and the last block wait for nothing
    assert_same(loaded, tensors)


def test_the_limit_may_come_from_the_environment(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_MAX_BYTES_PER_SECOND", str(PER_SECOND))
    started = time.monotonic()
    streamer.load(uri)
    assert time.monotonic() - started > 0.4 * BYTES / PER_SECOND


def test_a_deadline_that_the_limit_makes_impossible_says_so(uri: str) -> None:
    options = streamer.Options(max_bytes_per_second=100_000, deadline_s=0.5)
    with pytest.raises(streamer.TransferTimeoutError, match="max_bytes_per_second allows 100000 bytes/s"):
        streamer.load(uri, options=options)


def test_a_limit_below_a_small_block_is_refused() -> None:
    with pytest.raises(streamer.OptionError, match="max_bytes_per_second must be between 65536"):
        streamer.Options(max_bytes_per_second=1000)


# --- servers that serve few connections at a time, and refuse others or let them wait -------------------------------

# Small requests, so that every reactor asks for more at a time than the server serves.
# A server that lets a request wait has the default first-byte time-out, 30 s, to do so: that is no way out.
OPTIONS = Options(block_bytes=64 << 10, http_reactors=2, http_in_flight=16, block_deadline_s=25)


class Served:
    """The connections that a server has open, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._handlers: list[BaseHTTPRequestHandler] = []
        self._lock = threading.Lock()

    def __contains__(self, handler: BaseHTTPRequestHandler) -> bool:
        """Whether this connection is among the first ones that are open."""
        with self._lock:
            if handler not in self._handlers:
                self._handlers.append(handler)
            self._handlers = [each for each in self._handlers if each.connection.fileno() != -1]
            return handler in self._handlers[: self._most]


def refuse(answer: Answer, served: Served, stopping: threading.Event) -> None:
    """Answer as nginx does beyond ``limit_conn``."""
    answer.become(503, b"too many connections")
    answer.handler.close_connection = True


def delay(answer: Answer, served: Served, stopping: threading.Event) -> None:
    """Answer when another connection has ended, as a server does that has one process for each."""
    while answer.handler not in served and not stopping.wait(0.01):
        if has_left(answer.handler.connection):
            answer.handler.close_connection = True
            return


def has_left(client: socket.socket) -> bool:
    is_readable = bool(select.select([client], [], [], 0)[0])
    return is_readable and client.recv(1, socket.MSG_PEEK) == b""


@contextmanager
def server_of(
    path: Path, connections: int, beyond: Callable[[Answer, Served, threading.Event], None]
) -> Iterator[ScriptedServer]:
    served = Served(connections)

    def script(request: Request, answer: Answer) -> None:
        if answer.handler not in served:
            beyond(answer, served, server.stopping)

    with ScriptedServer(path.read_bytes(), script) as server:
        server.answers_head = True
        yield server


@pytest.mark.parametrize(("beyond", "connections"), [(refuse, 4), (delay, 4), (delay, 1)])
def test_a_server_of_few_connections_is_read_over_those_that_it_serves(tmp_path, beyond, connections):
    path = tmp_path / "model.safetensors"
    saved = {f"layer.{number}": torch.randint(0, 256, (256 << 10,), dtype=torch.uint8) for number in range(32)}
    save_file(saved, path)
    with server_of(path, connections, beyond) as server:
        loaded = streamer.load(server.url, options=OPTIONS)
        asked = len(server.requests)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())
    assert asked < 4 * (path.stat().st_size / OPTIONS.block_bytes)


def test_idle_connections_of_a_load_are_closed_if_the_next_load_waits_for_them(tmp_path):
    path = tmp_path / "model.safetensors"
    saved = {"a": torch.arange(1000)}
    save_file(saved, path)
    with server_of(path, 1, delay) as server:
        for _ in range(2):
            assert torch.equal(streamer.load(server.url, options=OPTIONS)["a"], saved["a"])


def test_a_forked_child_keeps_no_connection_of_its_parent_s_open_regression(tmp_path):
    """The server went on serving connections that its client had closed, as the child had copies of the sockets."""
    path = tmp_path / "model.safetensors"
    saved = {"a": torch.arange(1000)}
    save_file(saved, path)
    with server_of(path, 1, delay) as server:
        streamer.load(server.url, options=OPTIONS)
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            assert torch.equal(streamer.load(server.url, options=OPTIONS)["a"], saved["a"])
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
