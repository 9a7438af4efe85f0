"""Checkpoints of DCP that were compressed with zstd when they were saved, as torch's own extension does it."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.api import CheckpointException

import streamer
from streamer.integrations.dcp import saved_items

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state():
    generator = torch.Generator().manual_seed(0)
    return {
        "large": torch.rand(600, 512, generator=generator).bfloat16(),
        "zeros": torch.zeros(1000, 1000),
        "small": torch.rand(3, generator=generator),
        "complex": torch.ones(300, 4, dtype=torch.complex64),
        "empty": torch.zeros(0, 4),
        "step": 7,
    }


def blank():
    return {name: torch.zeros_like(each) if name != "step" else 0 for name, each in state().items()}


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("zstandard")
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(tmp_path / "step", _extensions=[ZStandard()]))
    return tmp_path / "step"


def load(uri, **how):
    found = blank()
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(uri, **how))
    return found


def error_of(uri):
    with pytest.raises(CheckpointException) as caught:
        load(uri)
    return caught.value.failures[0][0]


def assert_same(found):
    for name, value in state().items():
        assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value, name


@pytest.mark.parametrize("library", ["zstandard", "pyzstd", "compression.zstd"])
def test_a_compressed_item_is_read_with_each_installed_library_regression(folder, library, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.setattr(saved_items, "LIBRARIES", (library,))
    assert_same(load(folder))


@pytest.mark.server
def test_a_compressed_item_is_read_from_s3_regression(folder, s3_server):
    url = s3_server.upload_folder(folder, "private", "dcp/zstd")
    assert_same(load(url, storage_options=s3_server.storage_options()))


def test_without_a_library_the_error_says_which_one(folder, monkeypatch):
    monkeypatch.setattr(saved_items, "LIBRARIES", ("no_such_library",))
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert "is compressed with zstd, and no library for that is installed. pip install zstandard" in str(error)


def item(folder, name):
    infos = pickle.loads((folder / ".metadata").read_bytes()).storage_data
    return next(info for index, info in infos.items() if index.fqn == name)


def overwrite(folder, name, make):
    info = item(folder, name)
    with (folder / info.relative_path).open("r+b") as file:
        file.seek(info.offset)
        data = make(file.read(info.length))
        file.seek(info.offset)
        file.write(data)


@pytest.mark.parametrize("name", ["large", "small", "step"])
def test_damaged_bytes_are_an_error(folder, name):
    overwrite(folder, name, lambda data: bytes(len(data)))
    error = error_of(folder)
    assert isinstance(error, streamer.FormatError)
    assert f"item '{name}' cannot be decompressed: " in str(error)


def test_an_item_that_ends_early_is_an_error(folder):
    overwrite(folder, "large", lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert isinstance(error_of(folder), streamer.FormatError)


def test_an_item_unpacks_to_no_more_than_its_tensor_needs(folder):
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    overwrite(folder, "large", lambda data: bomb + bytes(len(data) - len(bomb)))
    assert "item 'large' unpacks to more than" in str(error_of(folder))


def test_a_value_of_any_length_is_read(tmp_path):
    pytest.importorskip("zstandard")
    writer = dcp.FileSystemWriter(tmp_path / "step", _extensions=[ZStandard()])
    dcp.save({"text": "a" * 1_000_000}, storage_writer=writer)
    found = {"text": ""}
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(tmp_path / "step"))
    assert found["text"] == "a" * 1_000_000
