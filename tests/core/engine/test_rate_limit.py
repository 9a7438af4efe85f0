"""`Options(max_bytes_per_second=…)`: a load of any storage takes as long as its bytes do at that rate, or longer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fsspec
import pytest
import torch
from comparison import assert_same
from safetensors.torch import save_file
from servers.nginx import NginxServer

import streamer

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
