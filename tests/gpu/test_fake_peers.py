"""Loads to CUDA devices from peers, through the real engine and the fake driver; see fake_devices.py."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
import torch
from comparison import assert_same
from safetensors.torch import save
from servers.one_file import one_file, place_of
from servers.scripted_http import ScriptedServer

import streamer
from gpu.fake_devices import FakeGpu
from streamer import _native
from streamer.core.peers import joining
from streamer.core.peers.server import PeerServer

TOKEN = "a-token-of-the-tests"
TENSORS = {f"layer{number:02}": torch.arange(number, number + 1_000_000, dtype=torch.float32) for number in range(12)}
DATA = save(TENSORS)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_PEERS_TOKEN", TOKEN)
    yield
    joining.leave_peers()


def load(storage: ScriptedServer, options: streamer.Options, device: str = "cuda") -> streamer.LoadReport:
    uri, storage_options = place_of("s3", storage)
    how = {"device": device, "storage_options": storage_options, "options": options, "progress": False}
    with streamer.stream(uri, **how) as stream:
        assert_same(dict(stream), TENSORS)
    assert _native.finish_cache_writes(30)
    return stream.report


@pytest.mark.parametrize("limit_bytes", [None, 12 << 20])
def test_what_nobody_holds_reaches_the_device(fake_gpu: FakeGpu, tmp_path: Path, limit_bytes: int | None) -> None:
    with one_file(data=DATA) as storage, socket.create_server(("127.0.0.1", 0)) as free:
        peers = [f"127.0.0.1:{free.getsockname()[1]}"]
        free.close()
        options = streamer.Options(cache_dir=tmp_path, peers=peers, memory_limit_bytes=limit_bytes)
        assert load(storage, options).bytes_read == sum(each.nbytes for each in TENSORS.values())


@pytest.mark.parametrize("limit_bytes", [None, 12 << 20])
def test_what_peers_hold_reaches_the_device(fake_gpu: FakeGpu, tmp_path: Path, limit_bytes: int | None) -> None:
    with one_file(data=DATA) as storage:
        load(storage, streamer.Options(cache_dir=tmp_path / "0"), device="cpu")
        with contextlib.closing(PeerServer(str(tmp_path / "0"), "127.0.0.1", 0, TOKEN)) as peer:
            options = streamer.Options(
                cache_dir=tmp_path / "own", peers=[peer.address], prefer="egress", memory_limit_bytes=limit_bytes
            )
            assert load(storage, options).bytes_read == 0
