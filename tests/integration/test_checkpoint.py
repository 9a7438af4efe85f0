"""An open checkpoint in the hand: what it tells without reading, each read's own device and dtype, and its pickle."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import safetensors.torch
import torch

import streamer

TENSORS = {"a": torch.arange(12, dtype=torch.float32).reshape(3, 4), "b": torch.ones(5, dtype=torch.int64)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(TENSORS, path)
    return path


@pytest.fixture
def checkpoint(file: Path) -> streamer.Checkpoint[torch.Tensor]:
    return streamer.open(file)


def test_it_is_a_mapping_of_names_to_tensors_that_are_not_read_yet(checkpoint: streamer.Checkpoint) -> None:
    assert list(checkpoint) == ["a", "b"]
    assert "a" in checkpoint
    assert "c" not in checkpoint
    a = checkpoint["a"]
    assert (a.shape, a.dtype, a.nbytes) == ((3, 4), torch.float32, 48)
    assert a[1].tolist() == [4, 5, 6, 7]
    with pytest.raises(streamer.UnknownTensorError, match="'c'"):
        checkpoint["c"]


def test_shape_and_dtype_are_those_of_the_tensor_that_is_read(file: Path) -> None:
    for opened, dtype in (
        (streamer.open(file, framework="np"), np.dtype("<f4")),
        (streamer.open(file, dtype="bfloat16"), torch.bfloat16),
    ):
        part = opened["a"]
        assert part.dtype == dtype
        assert part[...].dtype == dtype
        assert part[...].shape == part.shape
        assert (part.get_dtype(), part.nbytes) == ("F32", 48)


def test_numpy_reads_it_as_an_array(file: Path) -> None:
    for framework in ("pt", "np"):
        part = streamer.open(file, framework=framework)["a"]
        assert np.array_equal(np.asarray(part, dtype="f8"), TENSORS["a"].numpy())
        with pytest.raises(ValueError, match="without a copy"):
            part.__array__(copy=False)


def test_the_repr_says_where_how_many_and_how_large(checkpoint: streamer.Checkpoint, file: Path) -> None:
    assert repr(checkpoint) == f"<Checkpoint {file}: 2 tensors, 88.0 B in 1 shard>"
    assert repr(checkpoint["a"]) == f"<TensorSlice 'a' F32 [3, 4], 48.0 B in {file}>"
    checkpoint.close()
    assert repr(checkpoint).endswith("1 shard, closed>")


def test_a_read_may_have_a_device_and_a_dtype_of_its_own(checkpoint: streamer.Checkpoint) -> None:
    assert checkpoint.get_tensor("a", dtype=torch.float16).dtype == torch.float16
    assert checkpoint.get_slice("a", dtype="bfloat16")[0].dtype == torch.bfloat16
    both = checkpoint.get_tensors(dtype=torch.float64, device="cpu")
    assert {name: each.dtype for name, each in both.items()} == {"a": torch.float64, "b": torch.int64}
    assert checkpoint.get_tensor("a").dtype == torch.float32
    with pytest.raises(streamer.UnknownDeviceError):
        checkpoint.get_tensor("a", device="meta")
    with pytest.raises(streamer.OptionError):
        checkpoint.get_slice("a", dtype="int8")


def test_a_pickle_opens_it_again(checkpoint: streamer.Checkpoint) -> None:
    again = pickle.loads(pickle.dumps(checkpoint))
    assert type(again) is streamer.Checkpoint
    assert {name: tensor.tolist() for name, tensor in again.get_tensors().items()} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }


def test_a_pickle_of_safe_open_is_one_again(file: Path) -> None:
    again = pickle.loads(pickle.dumps(streamer.safe_open(file, "np")))
    assert type(again) is streamer.safe_open
    assert again.metadata() is None
    assert again.get_tensor("b").tolist() == [1] * 5


def test_a_pickle_keeps_names_dtype_and_that_it_is_closed(file: Path) -> None:
    checkpoint = streamer.open(file, names=["a"], dtype="float16")
    checkpoint.close()
    again = pickle.loads(pickle.dumps(checkpoint))
    assert again.keys() == ["a"]
    with pytest.raises(streamer.UsageError, match="closed"):
        again.get_tensor("a")


def test_another_process_reads_it_with_its_options(file: Path) -> None:
    url = f"simplecache::{file.as_uri()}"
    options = {"simplecache": {"cache_storage": str(file.parent / "cache")}}
    checkpoint = streamer.open(url, storage_options=options)
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['a'][...].tolist())"
    run = [sys.executable, "-c", script]
    told = subprocess.run(run, input=pickle.dumps(checkpoint), capture_output=True, check=True, timeout=60)
    assert json.loads(told.stdout) == TENSORS["a"].tolist()


def test_a_file_system_travels_with_it() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/pickled/model.safetensors", safetensors.torch.save(TENSORS))
    checkpoint = streamer.open("/pickled", fs=fs)
    assert pickle.loads(pickle.dumps(checkpoint)).get_tensor("b").tolist() == [1] * 5


def test_a_pickle_of_what_was_replaced_is_refused(checkpoint: streamer.Checkpoint, file: Path) -> None:
    pickled = pickle.dumps(checkpoint)
    safetensors.torch.save_file({**TENSORS, "b": torch.zeros(5, dtype=torch.int64)}, file)
    with pytest.raises(streamer.ChangedError, match="not the one that was pickled"):
        pickle.loads(pickled)


def test_neither_its_repr_nor_that_of_its_parts_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save(TENSORS))
    checkpoint = streamer.open(tmp_path.as_uri(), storage_options={"file": {"auto_mkdir": False}})
    assert "auto_mkdir" not in repr(checkpoint._opening)
