"""A connection ends with its socket, whoever has a copy of that; and where a copy is closed, it goes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from streamer.backends.client.ending_sockets import options_of_connector


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end, made as aiohttp does, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", listener.getsockname())
        with options_of_connector()["socket_factory"](address) as client:
            client.connect(listener.getsockname())
            server, _ = listener.accept()
            with server:
                server.settimeout(10)
                yield client, server


def test_the_connection_ends_where_a_copy_stays_open(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    copy = os.dup(client.fileno())
    try:
        client.close()
        assert server.recv(1) == b""
    finally:
        os.close(copy)


def test_a_childs_close_leaves_it_to_the_parent(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    child = os.fork()
    if child == 0:
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    client.sendall(b"x")
    assert server.recv(1) == b"x"


def test_one_that_is_not_connected_is_closed() -> None:
    made = options_of_connector()["socket_factory"]((socket.AF_INET, socket.SOCK_STREAM, 0, "", ()))
    made.close()
    assert made.fileno() == -1
