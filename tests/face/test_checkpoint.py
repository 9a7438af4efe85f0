"""An open checkpoint in the hand: what it tells without reading, each read's own device and dtype, and its pickle."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import safetensors.torch
import torch
from servers.seaweedfs import SeaweedServer

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


def test_a_checkpoint_is_a_mapping_of_names_to_unread_tensors(checkpoint: streamer.Checkpoint) -> None:
    assert list(checkpoint) == ["a", "b"]
    assert "a" in checkpoint
    assert "c" not in checkpoint
    a = checkpoint["a"]
    assert (a.shape, a.dtype, a.nbytes) == ((3, 4), torch.float32, 48)
    assert a[1].tolist() == [4, 5, 6, 7]
    with pytest.raises(streamer.UnknownTensorError, match="'c'"):
        checkpoint["c"]


def test_a_checkpoint_has_the_methods_of_a_mapping_regression(checkpoint: streamer.Checkpoint) -> None:
    assert isinstance(checkpoint, Mapping)
    assert {name: part[...].tolist() for name, part in checkpoint.items()} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }
    assert [part.get_shape() for part in checkpoint.values()] == [[3, 4], [5]]
    assert checkpoint.get("c") is None
    assert checkpoint.get("a")[0].tolist() == [0, 1, 2, 3]
    assert list({**checkpoint}) == checkpoint.keys() == ["a", "b"]
    assert checkpoint == checkpoint
    assert len({checkpoint}) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda part: part.to("cpu"),
        lambda part: part.float(),
        lambda part: part.sum(),
        lambda part: part + 1,
        lambda part: 2 * part,
        lambda part: torch.ones(3, 4) - part,
        lambda part: part == 1,
        lambda part: torch.ones(3, 4) == part,
        lambda part: part @ part,
        lambda part: part < 1,
        len,
        float,
        lambda part: torch.add(part, 1),
        lambda part: torch.stack([part, part]),
        lambda part: torch.ones(3, 4).copy_(part),
        lambda part: torch.nn.functional.linear(torch.ones(4), part),
        lambda part: torch.equal(part, part),
        torch.tensor,
    ],
)
def test_the_error_for_a_slice_used_as_a_tensor_advises_to_index_it_regression(
    checkpoint: streamer.Checkpoint, use
) -> None:
    with pytest.raises((TypeError, AttributeError), match=r"it is not read yet: index it with \[\.\.\.\]"):
        use(checkpoint["a"])


def test_a_slice_is_itself_and_has_no_attributes_of_protocols(checkpoint: streamer.Checkpoint) -> None:
    part = checkpoint["a"]
    assert part
    assert part == part
    assert part != checkpoint["a"]
    assert part != None  # noqa: E711
    assert len({part}) == 1
    assert not hasattr(part, "__dlpack__")


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
        with pytest.raises(ValueError, match="copy=False does not allow"):
            part.__array__(copy=False)


def test_the_repr_says_where_how_many_and_how_large(checkpoint: streamer.Checkpoint, file: Path) -> None:
    assert repr(checkpoint) == f"<Checkpoint {file}: 2 tensors, 88.0 B in 1 shard>"
    assert repr(checkpoint["a"]) == f"<TensorSlice 'a' F32 [3, 4], 48.0 B in {file}>"
    checkpoint.close()
    assert repr(checkpoint).endswith("1 shard, closed>")


def test_a_report_counts_one_and_several_in_words_that_fit() -> None:
    one = streamer.LoadReport("s3://a/b", tensors=1, bytes=4, seconds=1.0, requests=1, retries=1)
    assert str(one) == "s3://a/b: 1 tensor, 4.00 B in 1.00 s, 4.00 B/s, 1 request, 1 retry"
    assert str(replace(one, tensors=2, requests=2, retries=0)).startswith("s3://a/b: 2 tensors, ")
    assert str(replace(one, tensors=2, requests=2, retries=0)).endswith(", 2 requests, 0 retries")


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


@pytest.mark.parametrize("do", [pickle.dumps, copy.deepcopy, lambda part: torch.save({"a": part}, io.BytesIO())])
def test_the_pickle_of_a_slice_is_one_clear_sentence_regression(checkpoint: streamer.Checkpoint, do) -> None:
    with pytest.raises(TypeError, match=r"^<TensorSlice 'a' .*> cannot be pickled or copied: index it with \[\.\.\.\]"):
        do(checkpoint["a"])


def test_a_stream_says_that_it_cannot_be_pickled_regression(file: Path) -> None:
    with (
        streamer.stream(file) as stream,
        pytest.raises(streamer.UsageError, match="belongs to the process that began it"),
    ):
        pickle.dumps(stream)


def test_what_of_a_checkpoint_cannot_be_pickled_is_named_regression(file: Path, monkeypatch) -> None:
    for name in [each for each in sys.modules if each.endswith("cloudpickle")]:
        monkeypatch.delitem(sys.modules, name)
    checkpoint = streamer.open(file, progress=lambda done, total: None)
    with pytest.raises(
        streamer.UsageError, match=r"cannot be pickled, as its progress= cannot: .*Open it in the other"
    ):
        pickle.dumps(checkpoint)
    monkeypatch.setitem(sys.modules, "cloudpickle", pickle)  # whose pickler may do it
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(checkpoint)


@pytest.mark.server
def test_a_pickle_has_the_passed_credentials_and_none_of_the_environment(
    s3_server: SeaweedServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3_server.upload_folder(file.parent, "private", "pickled")
    options = s3_server.storage_options()
    secret = options["secret"].encode()
    assert secret in pickle.dumps(streamer.open(url, storage_options=options))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    pickled = pickle.dumps(streamer.open(url))
    assert secret not in pickled
    assert pickle.loads(pickled)["b"][...].tolist() == [1] * 5


def test_another_process_reads_a_pickled_checkpoint_with_its_options(file: Path) -> None:
    url = f"simplecache::{file.as_uri()}"
    options = {"simplecache": {"cache_storage": str(file.parent / "cache")}}
    checkpoint = streamer.open(url, storage_options=options)
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['a'][...].tolist())"
    run = [sys.executable, "-c", script]
    reported = subprocess.run(run, input=pickle.dumps(checkpoint), capture_output=True, check=True, timeout=60)
    assert json.loads(reported.stdout) == TENSORS["a"].tolist()


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


def test_reprs_of_a_checkpoint_and_its_parts_show_no_secret(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save(TENSORS))
    checkpoint = streamer.open(tmp_path.as_uri(), storage_options={"file": {"auto_mkdir": False}})
    assert "auto_mkdir" not in repr(checkpoint._request)


def test_metadata_that_differ_between_shards_are_a_remark_regression(tmp_path: Path) -> None:
    for shard, alpha in enumerate(("8", "16"), 1):
        more = {"format": "pt", "alpha": alpha, f"only of {shard}": "x"}
        safetensors.torch.save_file(
            {f"t{shard}": torch.ones(1)}, tmp_path / f"model-0000{shard}-of-00002.safetensors", more
        )
    expected = "the shards differ in their metadata 'alpha': the last shard's count"
    target = {"t1": torch.zeros(1), "t2": torch.zeros(1)}
    assert expected in streamer.load_into(tmp_path, target).remarks
    with streamer.open(tmp_path) as checkpoint:
        assert checkpoint.metadata()["alpha"] == "16"


def test_equal_metadata_and_the_parameters_of_encrypted_shards_are_none_regression(tmp_path: Path) -> None:
    tensors = {"t1": torch.ones(1024), "t2": torch.ones(1024)}
    streamer.save(tensors, tmp_path / "plain", max_shard_bytes=5000, metadata={"alpha": "8"})
    streamer.save(tensors, tmp_path / "sealed", max_shard_bytes=5000, key=bytes(range(32)))
    assert not streamer.load_into(tmp_path / "plain", dict(tensors)).remarks
    remarks = streamer.load_into(tmp_path / "sealed", dict(tensors), key=bytes(range(32))).remarks
    assert not [each for each in remarks if "metadata" in each]
