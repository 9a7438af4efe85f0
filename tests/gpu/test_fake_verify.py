"""Verified loads to CUDA devices, with the fake driver: bytes are digested in the slot they pass through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from faults.catalogue import FAULTS
from faults.server import Asked, FaultServer
from make_checkpoint import make_checkpoint
from safetensors.torch import load_file

import streamer
from gpu.fake_devices import FakeGpu

SMALL = streamer.Options(block_bytes=256 << 10, pinned_bytes=1 << 20)
BEHIND_HEADERS = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket`` with a small sharded checkpoint and its manifest in ``model``."""
    folder = tmp_path_factory.mktemp("verified") / "bucket" / "model"
    make_checkpoint(folder, total_bytes=6 << 20, shards=2)
    streamer.write_manifest(folder)
    return folder


def assert_is_model(loaded: dict[str, torch.Tensor], folder: Path) -> None:
    expected = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_load_to_a_device_is_compared_with_the_manifest(fake_gpu: FakeGpu, model: Path) -> None:
    with streamer.stream(model, device="cuda", options=SMALL, verify="manifest", progress=False) as tensors:
        assert_is_model(dict(tensors), model)
    assert tensors.report.is_verified
    assert tensors.report.rereads == 0


def test_a_tensor_flipped_on_the_way_to_a_device_is_read_once_more(fake_gpu: FakeGpu, model: Path) -> None:
    flipped: list[int] = []

    def once(asked: Asked):  # type: ignore[no-untyped-def]
        if asked.begin < BEHIND_HEADERS or flipped:
            return None
        flipped.append(asked.number)
        return FAULTS["flipped_byte"]

    with (
        FaultServer(model.parent, once) as server,
        streamer.stream(
            server.url("model"),
            device="cuda",
            storage_options=server.storage_options(),
            options=SMALL,
            verify="manifest",
            progress=False,
        ) as tensors,
    ):
        assert_is_model(dict(tensors), model)
    assert flipped
    assert tensors.report.rereads == 1


def test_a_tensor_that_stays_wrong_never_leaves_the_engine(fake_gpu: FakeGpu, model: Path) -> None:
    def always(asked: Asked):  # type: ignore[no-untyped-def]
        return FAULTS["flipped_byte"] if asked.begin >= BEHIND_HEADERS else None

    with FaultServer(model.parent, always) as server, pytest.raises(streamer.ChecksumError, match="tensor"):
        streamer.load(
            server.url("model"),
            device="cuda",
            storage_options=server.storage_options(),
            options=SMALL,
            verify="manifest",
            progress=False,
        )
    assert fake_gpu.pinned_in_use() == 0
