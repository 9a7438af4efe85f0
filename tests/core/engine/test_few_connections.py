"""Servers that serve few connections at a time, and refuse others or let them wait."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options

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
        """Whether this one is among the first of those that are open."""
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
