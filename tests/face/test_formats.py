"""Checkpoints of other formats than safetensors, through every function of the face, from disk and from S3."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from gguf import GGUFWriter
from safetensors.torch import save_file
from servers.seaweedfs import SeaweedServer
from tensorizer import TensorSerializer

import streamer
from streamer.core.errors import FormatError, MissingShardError, ObjectNotFoundError, TamperedError

Load = Callable[..., dict[str, torch.Tensor]]


class Place:
    """A folder on a disk or in a bucket.

    Attributes:
        uri: The folder.
        how: Storage options for it.
    """

    def __init__(self, folder: Path, server: SeaweedServer | None) -> None:
        self._folder, self._server = folder, server
        self.uri = f"s3://private/formats/{folder.name}" if server else str(folder)
        self.how: dict[str, Any] = {"storage_options": server.storage_options()} if server else {}

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file on the disk, and upload it."""
        path = self._folder / name
        write(path)
        if self._server is not None:
            self._server.put("private", f"formats/{self._folder.name}/{name}", path.read_bytes())


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.getfixturevalue("s3_server") if request.param == "s3" else None)


def tensors() -> dict[str, torch.Tensor]:
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(1))
    return {
        "weight": weight,
        "tied": weight,
        "transposed": weight.t(),
        "bias": torch.arange(7.0),
        "step": torch.tensor(3),
    }


def saved(value: Any) -> Callable[[Path], object]:
    return lambda path: torch.save(value, path)


def assert_equal(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], each) and loaded[name].dtype == each.dtype for name, each in expected.items())


def test_a_folder_with_only_a_bin_just_loads(place: Place) -> None:
    place.put("pytorch_model.bin", saved(tensors()))
    place.put("optimizer.pt", saved({"a": torch.ones(1)}))
    place.put("config.json", lambda path: path.write_text("{}"))
    assert_equal(streamer.load(place.uri, **place.how), tensors())


def test_a_file_loads_by_its_name(place: Place) -> None:
    place.put("any.pt", saved(tensors()))
    assert_equal(streamer.load(f"{place.uri}/any.pt", **place.how), tensors())


def write_dcp(place: Place, value: dict[str, torch.Tensor], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(value, checkpoint_id=folder / "saved")
    for path in (folder / "saved").iterdir():
        place.put(path.name, lambda target, path=path: target.write_bytes(path.read_bytes()))


def write_gguf(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    for name, tensor in tensors().items():
        if tensor.dim():  # ggml has no scalars, and no numbers of 64 bits in its arrays' order
            writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tensorizer(path: Path) -> None:
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(tensors())
    serializer.close()


def of_numpy(save: Callable[..., None]) -> Callable[[Path], object]:
    # A transposed array that numpy writes in Fortran order.
    return lambda path: save(path, **{name: each.numpy() for name, each in tensors().items()})


WRITERS: dict[str, Callable[[Path], object]] = {
    "x.pth": lambda path: torch.save(tensors(), path),
    "x.gguf": write_gguf,
    "x.npz": of_numpy(np.savez),
    "compressed.npz": of_numpy(np.savez_compressed),
    "x.tensors": write_tensorizer,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_loads_streams_and_is_opened(place: Place, name: str) -> None:
    place.put(name, WRITERS[name])
    expected = {key: each for key, each in tensors().items() if name != "x.gguf" or each.dim()}
    for uri in (place.uri, f"{place.uri}/{name}"):
        assert_equal(streamer.load(uri, **place.how), expected)
    options = streamer.Options(memory_limit_bytes=1 << 20, block_bytes=64 << 10)
    with streamer.stream(place.uri, order="file", options=options, **place.how) as stream:
        assert_equal(dict(stream), expected)
    parts = {"*": streamer.Slice(0, 1, 2)}
    sliced = streamer.load(place.uri, names=["weight", "transposed"], slices=parts, **place.how)
    assert_equal(sliced, {"weight": expected["weight"][100:], "transposed": expected["transposed"][150:]})
    with streamer.open(place.uri, **place.how) as checkpoint:
        assert torch.equal(checkpoint["transposed"][7], expected["transposed"][7])


def test_a_folder_of_dcp_loads(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    write_dcp(place, tensors(), tmp_path_factory.mktemp("dcp"))
    assert_equal(streamer.load(place.uri, **place.how), tensors())
    with streamer.open(place.uri, **place.how) as checkpoint:
        assert torch.equal(checkpoint["transposed"][7], tensors()["transposed"][7])


def test_other_formats_are_saved_as_safetensors(place: Place) -> None:
    place.put("x.npz", of_numpy(np.savez_compressed))
    with streamer.open(place.uri, **place.how) as checkpoint:
        streamer.save(checkpoint, f"{place.uri}/converted", **place.how)
    assert_equal(streamer.load(f"{place.uri}/converted", verify="manifest", **place.how), tensors())


def test_an_index_says_which_shard_counts(place: Place) -> None:
    first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    place.put(first, saved({"a": torch.ones(2), "b": torch.zeros(1)}))
    place.put(second, saved({"b": torch.ones(3)}))
    index = {"metadata": {}, "weight_map": {"a": first, "b": second}}
    place.put("pytorch_model.bin.index.json", lambda path: path.write_text(json.dumps(index)))
    expected = {"a": torch.ones(2), "b": torch.ones(3)}
    assert_equal(streamer.load(place.uri, **place.how), expected)
    assert_equal(streamer.load(f"{place.uri}/pytorch_model.bin.index.json", **place.how), expected)


def test_an_index_that_promises_too_much_is_refused(place: Place) -> None:
    place.put("pytorch_model-00001-of-00001.bin", saved({"a": torch.ones(2)}))
    index = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin", "z": "pytorch_model-00001-of-00001.bin"}}
    place.put("pytorch_model.bin.index.json", lambda path: path.write_text(json.dumps(index)))
    with pytest.raises(streamer.ShardIndexError, match="promises tensor 'z'"):
        streamer.load(place.uri, **place.how)


def test_shards_without_an_index_are_joined_and_counted(place: Place) -> None:
    place.put("pytorch_model-00001-of-00002.bin", saved({"a": torch.ones(2)}))
    with pytest.raises(MissingShardError, match="00002-of-00002"):
        streamer.load(place.uri, **place.how)
    place.put("pytorch_model-00002-of-00002.bin", saved({"b": torch.ones(3)}))
    assert_equal(streamer.load(place.uri, **place.how), {"a": torch.ones(2), "b": torch.ones(3)})


def test_safetensors_count_where_both_are(place: Place) -> None:
    place.put("pytorch_model.bin", saved({"a": torch.zeros(2)}))
    place.put("model.safetensors", lambda path: save_file({"a": torch.ones(2)}, path))
    assert_equal(streamer.load(place.uri, **place.how), {"a": torch.ones(2)})


def test_a_pattern_and_a_list_name_files(place: Place) -> None:
    place.put("x.bin", saved({"a": torch.ones(2)}))
    place.put("y.bin", saved({"b": torch.ones(3)}))
    expected = {"a": torch.ones(2), "b": torch.ones(3)}
    assert_equal(streamer.load(f"{place.uri}/*.bin", **place.how), expected)
    assert_equal(streamer.load([f"{place.uri}/x.bin", f"{place.uri}/y.bin"], **place.how), expected)


def test_open_reads_rows_of_any_tensor(place: Place) -> None:
    place.put("x.pt", saved(tensors()))
    with streamer.open(f"{place.uri}/x.pt", **place.how) as checkpoint:
        for name, tensor in tensors().items():
            assert tuple(checkpoint[name].shape) == tuple(tensor.shape)
            assert torch.equal(checkpoint.get_tensor(name), tensor)
        assert torch.equal(checkpoint["weight"][3:7], tensors()["weight"][3:7])
        assert torch.equal(checkpoint["transposed"][250, 10:], tensors()["transposed"][250, 10:])


def test_stream_slices_casts_and_fills_targets(place: Place) -> None:
    place.put("x.pt", saved(tensors()))
    uri, expected = f"{place.uri}/x.pt", tensors()
    with streamer.stream(uri, names=["weight", "transposed"], dtype="bfloat16", **place.how) as stream:
        cast = dict(stream)
    assert_equal(cast, {name: expected[name].bfloat16() for name in ("weight", "transposed")})
    parts = {"weight": streamer.Slice(1, 1, 4), "transposed": streamer.Slice(0, 2, 3)}
    sliced = streamer.load(uri, names=list(parts), slices=parts, **place.how)
    assert_equal(sliced, {"weight": expected["weight"][:, 75:150], "transposed": expected["transposed"][200:]})
    target = {name: torch.full_like(each, 9).contiguous() for name, each in expected.items()}
    streamer.load_into(uri, target, **place.how)
    assert_equal(target, expected)


def test_a_small_memory_limit_suffices(place: Place) -> None:
    value = {f"w{i}": torch.full((300, 400), float(i)) for i in range(20)} | {"t": torch.randn(500, 400).t()}
    place.put("x.pt", saved(value))
    options = streamer.Options(memory_limit_bytes=1 << 20, block_bytes=64 << 10)
    assert_equal(streamer.load(f"{place.uri}/x.pt", options=options, **place.how), value)


def test_verify_auto_logs_why_nothing_is_compared(place: Place) -> None:
    place.put("x.pt", saved(tensors()))
    with streamer.stream(f"{place.uri}/x.pt", verify="auto", **place.how) as stream:
        assert_equal(dict(stream), tensors())
    assert all(each.verified_by or each.remark for each in stream.report.verified)


def test_a_manifest_of_another_format_is_refused_with_a_way_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", weight=np.arange(6.0))
    with pytest.raises(FormatError, match="of the format NumPy") as caught:
        streamer.load(tmp_path / "model.npz", framework="np", verify="manifest")
    assert 'Leave verify="manifest" out' in str(caught.value)


def test_with_a_key_another_format_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", weight=np.arange(6.0))
    with pytest.raises(TamperedError, match="not encrypted"):
        streamer.load(tmp_path / "model.npz", framework="np", key=bytes(32))


def test_the_report_says_what_python_unpacked(place: Place) -> None:
    place.put("x.pt", saved(tensors()))
    with streamer.stream(f"{place.uri}/x.pt", **place.how) as stream:
        dict(stream)
    assert "Python unpacks 1 tensor that PyTorch does not hold as plain bytes" in str(stream.report)


def test_a_file_replaced_after_it_was_opened_is_noticed(place: Place) -> None:
    place.put("x.pt", saved(tensors()))
    checkpoint = streamer.open(f"{place.uri}/x.pt", **place.how)
    place.put("x.pt", saved({name: each + 1 for name, each in tensors().items()}))
    for name in ("weight", "transposed"):
        with pytest.raises(streamer.ChangedError):
            checkpoint.get_tensor(name)


def test_files_of_safetensors_with_another_name_still_load(place: Place) -> None:
    for name in ("model.bin", "blob", "x.gguf"):
        place.put(name, lambda path: save_file({"a": torch.ones(2)}, path))
        assert_equal(streamer.load(f"{place.uri}/{name}", **place.how), {"a": torch.ones(2)})


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    torch.save({"b": torch.ones(2)}, tmp_path / "b.bin")
    for uri in ([str(tmp_path / "a.safetensors"), str(tmp_path / "b.bin")], str(tmp_path / "[ab].*")):
        with pytest.raises(FormatError, match="PyTorch"):
            streamer.load(uri)


SECOND_FORMATS: dict[str, Callable[[Path], object]] = {
    "stats.npz": lambda path: np.savez(path, mean=np.zeros(3)),
    "x.gguf": write_gguf,
    "x.tensors": write_tensorizer,
}


@pytest.mark.parametrize(
    ("first", "second"),
    [("pytorch_model.bin", name) for name in SECOND_FORMATS] + [("x.gguf", "stats.npz"), ("stats.npz", "x.tensors")],
)
def test_files_of_two_formats_are_both_named_and_none_is_loaded_regression(
    place: Place, first: str, second: str
) -> None:
    for name in (first, second):
        place.put(name, SECOND_FORMATS.get(name) or saved(tensors()))
    for read in (streamer.load, streamer.open):
        with pytest.raises(FormatError, match="files of 2 formats") as caught:
            read(place.uri, **place.how)
        assert all(part in str(caught.value) for part in (first, second, place.uri, "Name the file to load"))
    if first.endswith(".bin"):
        assert_equal(streamer.load(f"{place.uri}/{first}", **place.how), tensors())


def test_dcp_beside_a_model_of_pytorch_is_loaded_by_the_name_of_its_metadata_regression(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_dcp(place, tensors(), tmp_path_factory.mktemp("dcp"))
    place.put("pytorch_model.bin", saved({"other": torch.ones(2)}))
    with pytest.raises(FormatError, match=r"\.metadata, .*\(DCP\); pytorch_model\.bin \(PyTorch\)"):
        streamer.load(place.uri, **place.how)
    assert_equal(streamer.load(f"{place.uri}/.metadata", **place.how), tensors())
    assert list(streamer.load(f"{place.uri}/pytorch_model.bin", **place.how)) == ["other"]


@pytest.mark.parametrize(
    "names", [["meta.pt"], ["common.pt", "meta.pt"], ["optimizer.pt", "scheduler.pt", "sampler.bin"]]
)
def test_files_that_programs_write_beside_dcp_are_no_model(tmp_path: Path, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(tensors(), checkpoint_id=tmp_path)
    for name in names:
        torch.save({"step": torch.ones(1)}, tmp_path / name)
    assert_equal(streamer.load(tmp_path), tensors())


def test_names_that_are_left_out_are_counted_regression(tmp_path: Path) -> None:
    for number in range(8):
        torch.save({"b": torch.ones(2)}, tmp_path / f"part{number}.pt")
    with pytest.raises(FormatError, match=r"8 files of PyTorch: part0\.pt, .*part4\.pt and 3 more") as caught:
        streamer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_short_relative_path_is_named_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part").mkdir()
    for number in range(2):
        torch.save({"b": torch.ones(2)}, tmp_path / f"part/part{number}.pt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError) as caught:
        streamer.load("part")
    assert str(caught.value).startswith("part: the folder holds 2 files")


def test_several_models_in_a_folder_are_to_be_named(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        torch.save({"b": torch.ones(2)}, tmp_path / name)
    with pytest.raises(FormatError, match=r"2 files of PyTorch: a\.pt, b\.pt.*Name the one to load"):
        streamer.load(tmp_path)


@pytest.mark.parametrize("stem", ["p", "pytorch_model", "checkpoint", "weights.v2"])
def test_a_series_of_any_name_is_a_model_regression(tmp_path: Path, stem: str) -> None:
    for number in (1, 2, 3):
        torch.save({f"w{number}": torch.ones(number)}, tmp_path / f"{stem}-{number:05d}-of-00003.bin")
    torch.save({"state": torch.ones(2)}, tmp_path / "optimizer.bin")
    assert sorted(streamer.load(tmp_path)) == ["w1", "w2", "w3"]
    (tmp_path / f"{stem}-00002-of-00003.bin").unlink()
    with pytest.raises(streamer.MissingShardError, match="2 of the 3 shards"):
        streamer.load(tmp_path)


@pytest.mark.parametrize(
    ("taken", "others", "reported"),
    [
        ("pytorch_model.bin", ["other.bin"], True),
        ("model.pt", ["ema.pt", "step-100.ckpt"], True),
        ("adapter_model.bin", ["base.pth"], True),
        ("pytorch_model.bin", ["optimizer.pt", "training_args.bin", "rng_state.pth"], False),
        ("model.pt", ["meta.pt", ".hidden.pt", "notes.txt"], False),
    ],
)
def test_files_beside_the_usual_name_are_reported_regression(
    tmp_path: Path, taken: str, others: list[str], reported: bool
) -> None:
    for name in (taken, *others):
        torch.save({"w": torch.full((2,), float(name == taken))}, tmp_path / name)
    with streamer.stream(tmp_path) as stream:
        assert dict(stream)["w"].sum() == 2
    remark = f"the usual name of a model is not that of {', '.join(sorted(others))}: left out; name the file to load it"
    assert (remark in stream.report.remarks) == reported


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.h5", "holds HDF5, as Keras writes it: load it there"),
        ("flax_model.msgpack", "flax.serialization.msgpack_restore"),
        ("model.onnx", "is a graph of ONNX"),
        ("model.pkl", "a pickle, which runs code"),
        ("x.npy", "is one array"),
    ],
)
def test_files_that_are_no_weights_are_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"x" * 100)
    with pytest.raises(ObjectNotFoundError) as caught:
        streamer.load(tmp_path)
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_a_tensor_that_two_files_hold_is_refused(tmp_path: Path) -> None:
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"):
        torch.save({"b": torch.ones(2)}, tmp_path / name)
    with pytest.raises(FormatError, match="is in two shards"):
        streamer.load(tmp_path)


def test_safe_open_reads_safetensors_only(tmp_path: Path) -> None:
    torch.save({"b": torch.ones(2)}, tmp_path / "x.bin")
    with pytest.raises(streamer.HeaderError, match=r"a zip archive, as torch\.save writes it"):
        streamer.safe_open(tmp_path / "x.bin", "pt")


def test_check_shows_another_format(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    reported = subprocess.run(
        [sys.executable, "-m", "streamer", "check", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert "1 shard, 5 tensors, 720 kB of PyTorch; headers are right" in reported


def test_a_pickled_checkpoint_opens_again(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "x.pt")
    again = pickle.loads(pickle.dumps(streamer.open(tmp_path / "x.pt")))
    assert torch.equal(again["bias"][...], tensors()["bias"])


def test_a_module_is_filled(tmp_path: Path) -> None:
    source, target = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    streamer.load_into(tmp_path, target)
    assert torch.equal(source.weight, target.weight)
