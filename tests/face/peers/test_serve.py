"""``python -m streamer cache serve``: begins, serves, takes another token, ends; and what it says if it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save
from servers.one_file import one_file, place_of

import streamer
from streamer import _native
from streamer._cli import main
from streamer.core.peers import joining
from streamer.core.peers.discovery import addresses_of
from streamer.core.peers.tcp_store import leave_stores

TOKEN = "a-token-of-the-tests"
TENSORS = {"weight": np.arange(1_000_000, dtype=np.float32)}
SOON_S = 60.0  # on a busy machine


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


@pytest.fixture
def storage():
    with one_file(data=save(TENSORS)) as server:
        yield server


def load(storage, folder, *peers):
    uri, storage_options = place_of("s3", storage)
    options = streamer.Options(cache_dir=folder, peers=list(peers) or None)
    with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
        np.testing.assert_array_equal(dict(stream)["weight"], TENSORS["weight"])
    assert _native.finish_cache_writes(30)
    return stream.report


@contextlib.contextmanager
def serving(*words):
    """Start the command; give its process and address."""
    command = [sys.executable, "-m", "streamer", "cache", "serve", "--host", "127.0.0.1", "--json"]
    words = words if "--port" in words or "STREAMER_PEERS" in os.environ else ("--port", "0", *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *words], **pipes) as process:
        try:
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(storage, tmp_path, number):
    load(storage, tmp_path / "0")
    with serving("--cache-dir", str(tmp_path / "0")) as (process, address):
        report = load(storage, tmp_path / "1", address)
        assert report.peer_bytes == {address: report.bytes}
        process.send_signal(number)
        assert process.wait(SOON_S) == (130 if number == signal.SIGINT else 0)
        assert "Traceback" not in process.stderr.read()
    assert load(storage, tmp_path / "2", address).peer_bytes == {}


def test_nodes_with_different_tokens_read_from_the_storage_until_both_have_the_new_one(storage, tmp_path, monkeypatch):
    load(storage, tmp_path / "0")
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with serving("--cache-dir", str(tmp_path / "0"), "--token-file", str(file)) as (_, address):
        assert load(storage, tmp_path / "1", address).peer_bytes
        monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN + "2")
        assert load(storage, tmp_path / "2", address).peer_bytes == {}
        file.write_text("")  # between two states: the old one is used
        (tmp_path / "new").write_text(TOKEN + "2")
        os.replace(tmp_path / "new", file)
        ends_at, number = time.monotonic() + SOON_S, 3
        while not load(storage, tmp_path / str(number), address).peer_bytes:
            assert time.monotonic() < ends_at
            number += 1
        monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
        assert load(storage, tmp_path / "old", address).peer_bytes == {}


def told(*words, **environment):
    result = CliRunner(env=environment).invoke(main, ["cache", "serve", *words])
    return result.exit_code, result.stderr


def test_what_is_missing_or_taken_is_said_with_what_to_do(tmp_path):
    folder = {"STREAMER_CACHE_DIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, text = told("--host", "127.0.0.1", "--port", port, **folder)
    assert code != 0
    assert f"no peer can listen on 127.0.0.1:{port}" in text
    assert "Name another port" in text
    code, text = told(STREAMER_CACHE_DIR="")
    assert (code != 0, "STREAMER_CACHE_DIR" in text, "--cache-dir" in text) == (True, True, True)
    code, text = told(**folder, STREAMER_PEERS_TOKEN="")
    assert (code != 0, "peers need a token" in text, "STREAMER_PEERS_TOKEN_FILE" in text) == (True, True, True)
    code, text = told("--token-file", str(tmp_path / "none"), **folder)
    assert (code != 0, str(tmp_path / "none") in text) == (True, True)
    code, text = told("--max-bytes-per-second", "fast", **folder)
    assert (code != 0, "max_serving_bytes_per_second" in text) == (True, True)


def test_the_port_is_that_of_the_list(storage, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    load(storage, tmp_path)
    monkeypatch.setenv("STREAMER_PEERS", f"127.0.0.1:{port},")
    with serving("--cache-dir", str(tmp_path)) as (_, address):
        assert address == f"127.0.0.1:{port}"


def test_it_is_announced_in_the_store_where_peers_meet(storage, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = f"tcpstore://127.0.0.1:{store.port}"
    load(storage, tmp_path / "0")
    with monkeypatch.context() as context:
        context.setenv("STREAMER_PEERS", place)
        with serving("--cache-dir", str(tmp_path / "0"), "--port", "0") as (_, address):
            until = time.monotonic() + SOON_S
            while address not in addresses_of(place) and time.monotonic() < until:
                time.sleep(0.1)
            options = streamer.Options(cache_dir=tmp_path / "1", peers=place, prefer="egress")
            uri, storage_options = place_of("s3", storage)
            with streamer.stream(uri, framework="np", storage_options=storage_options, options=options) as stream:
                dict(stream)
            assert stream.report.peer_bytes == {address: stream.report.bytes}
    leave_stores()
