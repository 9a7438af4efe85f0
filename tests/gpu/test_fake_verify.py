"""Verified loads to CUDA devices, with the fake driver: bytes are digested in the slot they pass through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from comparison import assert_same, tensors_of
from faults.flips import flips_always, flips_once
from faults.server import FaultServer
from make_checkpoint import make_checkpoint

import streamer
from gpu.fake_devices import FakeGpu

SMALL = streamer.Options(block_bytes=256 << 10, pinned_bytes=1 << 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket`` with a small sharded checkpoint and its manifest in ``model``."""
    folder = tmp_path_factory.mktemp("verified") / "bucket" / "model"
    make_checkpoint(folder, total_bytes=6 << 20, shards=2)
    streamer.write_manifest(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, torch.Tensor]:
    return tensors_of(model)


def streamed(server: FaultServer) -> streamer.Stream:
    return streamer.stream(
        server.url("model"),
        device="cuda",
        storage_options=server.storage_options(),
        options=SMALL,
        verify="manifest",
        progress=False,
    )


def test_a_load_to_a_device_is_compared_with_the_manifest(
    fake_gpu: FakeGpu, model: Path, expected: dict[str, torch.Tensor]
) -> None:
    with streamer.stream(model, device="cuda", options=SMALL, verify="manifest", progress=False) as tensors:
        assert_same(dict(tensors), expected)
    assert tensors.report.is_verified
    assert tensors.report.rereads == 0


def test_a_tensor_flipped_on_the_way_to_a_device_is_read_once_more(
    fake_gpu: FakeGpu, model: Path, expected: dict[str, torch.Tensor]
) -> None:
    with FaultServer(model.parent, flips_once()) as server, streamed(server) as tensors:
        assert_same(dict(tensors), expected)
        assert server.faults["flipped_byte"] == 1
    assert tensors.report.rereads == 1


def test_a_tensor_that_stays_wrong_never_leaves_the_engine(fake_gpu: FakeGpu, model: Path) -> None:
    with (
        FaultServer(model.parent, flips_always) as server,
        streamed(server) as tensors,
        pytest.raises(streamer.ChecksumError, match="tensor"),
    ):
        dict(tensors)
    assert fake_gpu.pinned_in_use() == 0
