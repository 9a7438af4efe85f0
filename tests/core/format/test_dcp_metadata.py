"""The metadata that torch's own classes pickle, and pickles that only look like them."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import defaultdict, deque
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as OldProperties
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

import streamer
from streamer.core.format.dcp_metadata import SavedChunk, SavedItem, SavedTensor, parse_dcp_metadata

URI = "memory://step/.metadata"


def metadata(**changed):
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3]))
    properties = TensorProperties(dtype=torch.bfloat16, memory_format=torch.channels_last)
    fields = {
        "state_dict_metadata": {
            "w": TensorStorageMetadata(properties, torch.Size([2, 3]), [chunk]),
            "step": BytesStorageMetadata(),
        },
        "planner_data": {"w": ("model", "w"), "step": ("step",)},
        "storage_data": {
            MetadataIndex("w", torch.Size([0, 0]), 0): _StorageInfo("__0_0.distcp", 10, 20),
            MetadataIndex("step"): _StorageInfo("sub/__0_0.distcp", 0, 10, ["stream.zstd/1"]),
        },
        "storage_meta": StorageMeta(checkpoint_id=Path("/somewhere"), save_id="saved"),
    }
    return Metadata(**{**fields, **changed})


def parsed(value, protocol=None):
    return parse_dcp_metadata(pickle.dumps(value, protocol), uri=URI)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_torch_saved_is_read(protocol):
    found = parsed(metadata(), protocol)
    chunk = SavedChunk((0, 0), (2, 3))
    assert found.entries == {
        "w": SavedTensor("bfloat16", (2, 3), [chunk], "torch.strided", requires_grad=False, memory_format=1),
        "step": None,
    }
    assert found.items == {
        ("w", (0, 0)): SavedItem("__0_0.distcp", 10, 20),
        ("step", None): SavedItem("sub/__0_0.distcp", 0, 10, ("stream.zstd/1",)),
    }
    assert found.planner_data == {"w": ("model", "w"), "step": ("step",)}
    assert found.save_id == "saved"


def test_what_torch_saved_before_2_3_is_read():
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    entry = TensorStorageMetadata(OldProperties(dtype=torch.float16, requires_grad=True), torch.Size([2]), [chunk])
    found = parsed(metadata(state_dict_metadata={"w": entry}, storage_meta=None)).entries["w"]
    assert (found.dtype, found.requires_grad, found.memory_format) == ("float16", True, 0)


@pytest.mark.parametrize("strides", [(3, 1), None])
def test_what_torch_2_15_saves_is_read_regression(monkeypatch, strides):
    write_strides(monkeypatch, strides)
    assert parsed(metadata()).entries["w"].strides == strides


def test_strides_that_are_no_numbers_are_refused(monkeypatch):
    write_strides(monkeypatch, ("a", 1))
    with pytest.raises(streamer.FormatError, match="strides is not of whole unsigned numbers"):
        parsed(metadata())


def write_strides(monkeypatch, strides):
    """Write properties as torch 2.15 does, whichever is installed."""
    as_here = TensorProperties.__getstate__
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda self: (*as_here(self)[:5], strides))


ALL_DTYPES = sorted(
    {str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)}
    - {f"torch.{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)}  # which have no tensors
    - {"torch.bits1x8", "torch.bits2x4", "torch.bits4x2", "torch.bits8", "torch.bits16"}
    - {"torch.quint4x2", "torch.quint2x4"}
)


@each_row("name", ALL_DTYPES)
def test_every_dtype_is_known(name):
    dtype = getattr(torch, name.removeprefix("torch."))
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    entry = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size([2]), [chunk])
    found = parsed(metadata(state_dict_metadata={"w": entry})).entries["w"]
    assert found.dtype == name.removeprefix("torch.")


@each_row("path", ["../x", "/etc/passwd", "s3://other/x", "a\\b", "", "a/../b", "%2e%2e/x", "a\0"])
def test_a_file_outside_of_the_folder_is_refused(path):
    with pytest.raises(streamer.FormatError, match="the file name") as caught:
        parsed(metadata(storage_data={MetadataIndex("w", [0, 0]): _StorageInfo(path, 0, 1)}))
    assert caught.value.uri == URI


def tensor(properties=None, size=(2,), chunks=((0,), (2,))):
    chunk = ChunkStorageMetadata(*chunks)
    return TensorStorageMetadata(properties or TensorProperties(), size, [chunk])


@each_row(
    ("changed", "reported"),
    [
        ({"state_dict_metadata": None}, "state_dict_metadata is of type NoneType"),
        ({"storage_data": []}, "storage_data is of type list"),
        ({"state_dict_metadata": {1: BytesStorageMetadata()}}, "a name is of type int"),
        ({"state_dict_metadata": {"w": 1}}, "there is a int in place of a TensorStorageMetadata"),
        ({"state_dict_metadata": {"w": ChunkStorageMetadata((0,), (1,))}}, "there is a ChunkStorageMetadata"),
        ({"state_dict_metadata": {"w": tensor(size=(-1,))}}, "a size is not of whole unsigned numbers"),
        ({"state_dict_metadata": {"w": tensor(size=(True,))}}, "a size is not of whole unsigned numbers"),
        ({"state_dict_metadata": {"w": tensor(size=(1 << 63,))}}, "a size is not of whole unsigned numbers"),
        ({"state_dict_metadata": {"w": tensor(chunks=((0, 0), (2, 2)))}}, "a chunk has other dimensions"),
        ({"state_dict_metadata": {"w": tensor(chunks=((0,), (0.5,)))}}, "sizes is not of whole unsigned numbers"),
        ({"storage_data": {"w": _StorageInfo("a", 0, 1)}}, "there is a str in place of a MetadataIndex"),
        ({"storage_data": {MetadataIndex("w"): _StorageInfo("a", -1, 1)}}, "a place in a file is not of whole"),
        ({"storage_data": {MetadataIndex("w"): _StorageInfo("a", 0, 1 << 70)}}, "a place in a file is not of whole"),
        ({"storage_data": {MetadataIndex("w"): _StorageInfo("a", 0, 1, "zstd")}}, "no list of names"),
        ({"storage_data": {MetadataIndex(1): _StorageInfo("a", 0, 1)}}, "a name is of type int"),
        ({"state_dict_metadata": {"w": Path.home}}, "in place of a TensorStorageMetadata"),
    ],
)
def test_what_is_not_as_torch_writes_it_is_refused(changed, reported):
    with pytest.raises(streamer.FormatError, match=reported):
        parsed(metadata(**changed))


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_malicious_pickle_does_not_run(tmp_path):
    proof = str(tmp_path / "proof")
    for malicious in (Runs(proof), metadata(storage_meta=Runs(proof))):
        with pytest.raises(streamer.FormatError, match="mkdir in place of a"):
            parsed(malicious)
    assert parsed(metadata(planner_data={"w": [Runs(proof)]})).planner_data is None
    assert not os.path.exists(proof)


class Plan(dict):
    """A class of a saver, with items, attributes and a function in it."""


class MoreMetadata(Metadata):
    """A class that a saver derives from torch's, as Megatron does."""


FOREIGN = {
    "a plan of torch": lambda: SavePlan([WriteItem(MetadataIndex("w"), WriteItemType.TENSOR)], planner_data=Plan(a=1)),
    "an object with items": lambda: Plan(a=[1]),
    "a default dict": lambda: defaultdict(list, a=[1]),
    "a partial function": lambda: partial(os.getcwd, 1),
    "a method": lambda: Path.home,
    "an enumeration": lambda: WriteItemType.SHARD,
    "a queue": lambda: [deque([Decimal(1)])],
    "a date": lambda: datetime(2026, 1, 1),
    "a slot class": lambda: SimpleNamespace(a=Fraction(1, 2)),
}


@each_row("protocol", [2, 4, 5])
@each_row("make", FOREIGN.values())
def test_objects_of_other_classes_beside_the_tensors_are_skipped_regression(make, protocol):
    plain = parsed(metadata())
    for derived in (False, True):
        saved = metadata(planner_data=make())
        saved.all_local_plans, saved.mcore_data = [make()], {"w": make()}
        if derived:
            saved.__class__ = MoreMetadata
        read = parse_dcp_metadata(pickle.dumps(saved, protocol), uri=URI)
        assert (read.entries, read.items, read.planner_data) == (plain.entries, plain.items, None)


WHOLE = pickle.dumps(metadata())


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_give_metadata_or_a_format_error(changes):
    data = bytearray(WHOLE)
    for position, value in changes:
        data[position] = value
    with contextlib.suppress(streamer.FormatError):
        parse_dcp_metadata(bytes(data), uri=URI)
