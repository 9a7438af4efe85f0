"""The public face over local files: what loads, in which form, and what bad input gets."""

from __future__ import annotations

import json
import os
import struct
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from each_row import each_row

import streamer

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
    torch.uint32, torch.float32, torch.complex64, torch.float64, torch.int64, torch.uint64, torch.float8_e5m2,
    torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def random_tensor(shape, dtype):
    """Random bits; NaNs among them, so equality is always asked of the bits."""
    bytes_per_element = torch.empty(0, dtype=dtype).element_size()
    raw = os.urandom(int(np.prod(shape)) * bytes_per_element)
    if dtype == torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def is_same(got, expected):
    return got.dtype == expected.dtype and got.shape == expected.shape and torch.equal(bits(got), bits(expected))


def assert_same(got, expected):
    assert set(got) == set(expected)
    assert [name for name, tensor in expected.items() if not is_same(got[name], tensor)] == []


@pytest.fixture(scope="module")
def tensors():
    made = {f"dtype.{str(dtype).removeprefix('torch.')}": random_tensor((3, 8), dtype) for dtype in DTYPES}
    made |= {f"layers.{i}.weight": random_tensor((257, 33), torch.bfloat16) for i in range(20)}
    made |= {
        "embed": random_tensor((1500, 1000), torch.float32),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7, dtype=torch.float16),
        "norm": random_tensor((11,), torch.float32),
    }
    return made


@pytest.fixture(scope="module")
def folder(tensors, tmp_path_factory):
    """A sharded checkpoint with an index, a consolidated twin that the index leaves out, and a config."""
    path = tmp_path_factory.mktemp("checkpoint") / "my model"
    path.mkdir()
    names = list(tensors)
    weight_map = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[shard::3]}
        safetensors.torch.save_file(part, path / file, metadata={"format": "pt", f"shard{shard}": "yes"})
        weight_map |= dict.fromkeys(part, file)
    safetensors.torch.save_file({"embed": torch.zeros(2)}, path / "consolidated.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def single(tensors, tmp_path):
    path = tmp_path / "one.safetensors"
    safetensors.torch.save_file(tensors, path)
    return path


def test_a_folder_with_an_index_gives_exactly_the_tensors_of_the_index(folder, tensors):
    assert_same(streamer.load(folder), tensors)


@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda folder: f"{folder}/",
        lambda folder: folder.as_uri(),
        lambda folder: folder / "model.safetensors.index.json",
        lambda folder: f"{folder}/model-*.safetensors",
        lambda folder: sorted(folder.glob("model-*.safetensors")),
        lambda folder: [folder.as_uri() + f"/model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)],
    ],
    ids=["text", "slash", "file URL", "index", "glob", "paths", "URLs"],
)
def test_every_way_to_name_a_checkpoint_gives_the_same(folder, tensors, form):
    assert_same(streamer.load(form(folder)), tensors)


def test_numpy_arrays_come_out_too(folder, tensors):
    got = streamer.load(folder, framework="np", names=["embed", "dtype.int64", "scalar", "empty"])
    for name, array in got.items():
        assert isinstance(array, np.ndarray)
        assert is_same(torch.from_numpy(array), tensors[name])


def test_numpy_has_the_small_floats_of_ml_dtypes(folder, tensors):
    small = {name: each for name, each in tensors.items() if each.is_floating_point() and each.element_size() < 4}
    got = streamer.load(folder, framework="np", names=[name for name in small if small[name].dtype != torch.float16])
    assert {str(array.dtype) for array in got.values()} >= {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
    for name, array in got.items():
        assert np.array_equal(array.astype(np.float32), tensors[name].to(torch.float32).numpy(), equal_nan=True)


def test_without_ml_dtypes_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(streamer.UnsupportedDtypeError, match=r"(BF16|F8).* pip install ml_dtypes, or .*pt"):
        streamer.load(folder, framework="np")


def test_every_tensor_owns_its_memory_and_may_be_written(folder):
    got = streamer.load(folder)
    addresses = [tensor.data_ptr() for tensor in got.values() if tensor.numel()]
    assert len(set(addresses)) == len(addresses)
    got["embed"].fill_(7)
    assert got["embed"].untyped_storage().nbytes() == got["embed"].nbytes


def test_the_dict_is_in_file_order(single, tensors):
    with safetensors.safe_open(single, "pt") as reference:
        assert list(streamer.load(single)) == list(reference.offset_keys())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["scalar", "embed"], {"scalar", "embed"}),
        ("scalar", {"scalar"}),
        ("layers.1*.weight", {f"layers.{i}.weight" for i in (1, *range(10, 20))}),
        (lambda name: name.startswith("n"), {"norm"}),
        (lambda name: False, set()),
    ],
)
def test_only_requested_tensors_are_delivered_and_read(folder, tensors, names, expected):
    with streamer.stream(folder, names=names, options=streamer.Options(coalesce_gap_bytes=0)) as wanted:
        got = dict(wanted)
    assert_same(got, {name: tensors[name] for name in expected})
    assert wanted.report.bytes_read == wanted.report.bytes == sum(tensors[name].nbytes for name in expected)


def test_the_report_is_complete_after_the_loop(folder, tensors):
    with streamer.stream(folder) as wanted:
        assert not wanted.report.is_complete
        for _ in wanted:
            pass
    report = wanted.report
    assert report.is_complete
    assert (report.tensors, report.bytes) == (len(tensors), sum(tensor.nbytes for tensor in tensors.values()))
    assert report.bytes == wanted.total_bytes
    assert set(report.stages) == {"locate", "headers", "read"}
    assert json.loads(json.dumps(report.to_dict()))["gb_per_s"] == report.gb_per_s > 0


def test_file_order_is_kept_on_request(single):
    with streamer.stream(single, order="file", options=streamer.Options(block_bytes=64 << 10)) as wanted:
        assert [name for name, _ in wanted] == wanted.names


def test_leaving_the_loop_early_cancels_the_rest(folder):
    with streamer.stream(folder) as wanted:
        for _ in wanted:
            break
    assert not wanted.report.is_complete
    with pytest.raises(streamer.LoadCancelledError):
        list(wanted)


def test_a_module_is_filled_in_place(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    saved = {name: value + 5 for name, value in model.state_dict().items()}
    safetensors.torch.save_file(saved, tmp_path / "model.safetensors")
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    report = streamer.load_into(tmp_path, model)
    assert_same(model.state_dict(), saved)
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == before
    assert report.is_complete


def test_targets_that_are_views_or_tied_are_filled_too(tmp_path):
    tied = torch.arange(24.0).reshape(4, 6)
    saved = {"a": torch.randn(4, 6), "b": torch.randn(4, 6), "c": tied.clone(), "d": tied}
    safetensors.torch.save_file(saved, tmp_path / "model.safetensors")
    shared = torch.zeros(4, 6)
    target = {"a": torch.zeros(6, 4).t(), "b": torch.zeros(4, 12)[:, ::2], "c": shared, "d": shared}
    streamer.load_into(tmp_path, target)
    assert_same(target, saved)


def test_numpy_targets_are_filled_in_place(tmp_path):
    safetensors.torch.save_file({"a": torch.arange(6.0)}, tmp_path / "model.safetensors")
    target = {"a": np.zeros(6, np.float32)}
    streamer.load_into(tmp_path, target, framework="np")
    assert target["a"].tolist() == list(range(6))


def test_strict_targets_match_by_name_and_tied_ones_count_once(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(streamer.TargetError, match=r"lacks 1 of the target's tensors: 'z'"):
        streamer.load_into(tmp_path, {"a": torch.zeros(3), "b": torch.zeros(3), "z": torch.zeros(3)})
    with pytest.raises(streamer.TargetError, match=r"lacks 1 of the checkpoint's tensors: 'b'"):
        streamer.load_into(tmp_path, {"a": torch.zeros(3)})
    target = {"a": torch.zeros(3), "z": torch.zeros(3)}
    assert streamer.load_into(tmp_path, target, strict=False).tensors == 1
    assert target["a"].tolist() == [1, 1, 1]
    shared = torch.zeros(3)
    streamer.load_into(tmp_path, {"a": shared, "tied": shared, "b": torch.zeros(3)})


@pytest.mark.parametrize("wrong", [torch.zeros(4), torch.zeros(3, 1), torch.zeros(3, dtype=torch.float64)])
def test_a_target_of_another_shape_or_dtype_is_refused_before_anything_is_written(tmp_path, wrong):
    safetensors.torch.save_file({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "model.safetensors")
    first = torch.zeros(3)
    with pytest.raises(streamer.TargetError, match=r"'b'"):
        streamer.load_into(tmp_path, {"a": first, "b": wrong})
    assert first.tolist() == [0, 0, 0]


def test_random_access_reads_headers_once_and_then_only_requested_bytes(folder, tensors):
    with streamer.open(folder) as checkpoint:
        assert checkpoint.keys() == sorted(tensors)
        assert len(checkpoint) == len(tensors)
        assert "norm" in checkpoint
        assert checkpoint.metadata()["shard2"] == "yes"
        assert is_same(checkpoint.get_tensor("norm"), tensors["norm"])
        part = checkpoint.get_slice("embed")
        assert (part.get_shape(), part.get_dtype()) == ([1500, 1000], "F32")
        assert is_same(part[3:9, 5], tensors["embed"][3:9, 5])
        assert_same(checkpoint.get_tensors("layers.*"), {n: t for n, t in tensors.items() if n.startswith("layers.")})
        with pytest.raises(streamer.UnknownTensorError, match="nix"):
            checkpoint.get_tensor("nix")
    with pytest.raises(streamer.UsageError, match="closed"):
        checkpoint.get_tensor("norm")
    assert is_same(part[0], tensors["embed"][0])


def test_a_checkpoint_replaced_after_opening_is_noticed(single):
    checkpoint = streamer.open(single)
    os.utime(single, ns=(1, 1))
    with pytest.raises(streamer.ChangedError):
        checkpoint.get_tensor("norm")


def test_safe_open_answers_as_safetensors_does(single):
    with safetensors.safe_open(single, framework="pt") as theirs, streamer.safe_open(single, framework="pt") as ours:
        assert ours.keys() == list(theirs.keys())
        assert ours.offset_keys() == list(theirs.offset_keys())
        assert ours.metadata() == theirs.metadata()
        assert_same({name: ours.get_tensor(name) for name in ours}, theirs.get_tensors())
        assert ours.get_slice("norm").get_shape() == theirs.get_slice("norm").get_shape()
        assert ours.get_slice("norm").get_dtype() == theirs.get_slice("norm").get_dtype()
        assert is_same(ours.get_slice("embed")[2:5, ::3], theirs.get_slice("embed")[2:5, ::3])


def test_load_file_is_one_import_away(single, tensors):
    assert_same(streamer.load_file(single), tensors)
    assert_same(streamer.load_file(str(single), "cpu"), tensors)


def test_a_progress_callable_gets_every_byte(single):
    heard = []
    streamer.load(single, progress=lambda done, total: heard.append((done, total)))
    assert heard == sorted(heard)
    assert heard[-1][0] == heard[-1][1] > 0


def test_the_progress_of_an_open_checkpoint_is_that_of_its_reads_unless_they_say_otherwise(single):
    of_checkpoint, of_read = [], []
    with streamer.open(single, progress=lambda done, total: of_checkpoint.append((done, total))) as checkpoint:
        checkpoint.get_tensors(progress=lambda done, total: of_read.append((done, total)))
        assert of_read
        assert not of_checkpoint
        checkpoint.get_tensors(progress=False)
        assert not of_checkpoint
        checkpoint.get_tensors()
    assert of_checkpoint[-1][0] == of_checkpoint[-1][1] > 0


def test_a_bar_is_drawn_on_request_and_not_into_a_pipe(single, capsys, monkeypatch):
    streamer.load(single)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("streamer._progress.SHOWN_AFTER_S", 0)
    streamer.load(single, progress=True)
    assert "100%" in capsys.readouterr().err


def write(path, content):
    path.write_bytes(content)
    return path


def header_of(**entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


U8 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@each_row(
    ("content", "error"),
    [
        (b"", streamer.HeaderError),
        (b"1234567", streamer.HeaderError),
        (struct.pack("<Q", 1 << 60), streamer.HeaderError),
        (struct.pack("<Q", 2) + b"{]", streamer.HeaderError),
        (header_of(a=U8) + b"123", streamer.StreamerError),
        (header_of(a=U8) + b"12345", streamer.HeaderError),
        (b"<html>login</html>" * 10, streamer.HeaderError),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content, error):
    with pytest.raises(error, match="bad"):
        streamer.load(write(tmp_path / "bad.safetensors", content))


@pytest.mark.parametrize(
    ("shard", "error"),
    [
        ("missing.safetensors", streamer.ObjectNotFoundError),
        ("../outside.safetensors", streamer.ShardIndexError),
        ("/etc/outside.safetensors", streamer.ShardIndexError),
        ("s3://other/outside.safetensors", streamer.ShardIndexError),
    ],
)
def test_an_index_may_name_only_existing_shards_of_its_own_folder(tmp_path, shard, error):
    folder = tmp_path / "inner"
    folder.mkdir()
    write(tmp_path / "outside.safetensors", header_of(a=U8) + b"1234")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(error, match=r"outside|missing"):
        streamer.load(folder)


def test_an_index_that_promises_a_tensor_its_shard_lacks_is_refused(tmp_path):
    write(tmp_path / "s.safetensors", header_of(a=U8) + b"1234")
    index = {"weight_map": {"a": "s.safetensors", "b": "s.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(streamer.ShardIndexError, match=r"'b'"):
        streamer.load(tmp_path)


def test_two_shards_with_the_same_tensor_need_an_index(tmp_path):
    for name in "xy":
        write(tmp_path / f"{name}.safetensors", header_of(a=U8) + b"1234")
    with pytest.raises(streamer.FormatError, match=r"x\.safetensors and .*y\.safetensors"):
        streamer.load(tmp_path)


def test_several_unusual_indexes_are_ambiguous(tmp_path):
    for name in "xy":
        write(tmp_path / f"{name}.safetensors.index.json", b"{}")
    with pytest.raises(streamer.FormatError, match="2 indexes"):
        streamer.load(tmp_path)


@each_row(
    ("arguments", "error", "message"),
    [
        (("/nonexistent/model",), streamer.ObjectNotFoundError, "/nonexistent/model"),
        (("/nonexistent/*.safetensors",), streamer.ObjectNotFoundError, "nonexistent"),
        (([],), streamer.UsageError, "no URI"),
        (("",), streamer.UsageError, "non-empty"),
        ((["a", 5],), streamer.UsageError, "not int"),
        (("nosuchscheme://bucket/x",), streamer.UnknownSchemeError, "nosuchscheme"),
    ],
)
def test_a_uri_that_leads_nowhere_says_so(arguments, error, message):
    with pytest.raises(error, match=message):
        streamer.load(*arguments)


def test_a_folder_without_safetensors_says_so(tmp_path):
    write(tmp_path / "model.onnx", b"x")
    with pytest.raises(streamer.ObjectNotFoundError, match=r"no \*\.safetensors"):
        streamer.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cuda:99"}, streamer.UnknownDeviceError, "cuda:99"),
        ({"device": "toaster"}, streamer.UnknownDeviceError, "toaster"),
        ({"device": "meta"}, streamer.UnknownDeviceError, "meta"),
        ({"device": "cuda", "framework": "np"}, streamer.UnknownDeviceError, "numpy"),
        ({"device": {"": "cpu"}, "framework": "np"}, streamer.UnknownDeviceError, "numpy"),
        ({"device": {"nix": "cpu"}}, streamer.OptionError, "none for tensor"),
        ({"device": {"": "cuda:99"}}, streamer.UnknownDeviceError, "cuda:99"),
        ({"dtype": "int8"}, streamer.OptionError, "float64, float32, float16, bfloat16 or auto, not 'int8'"),
        ({"dtype": "nix"}, streamer.OptionError, "not 'nix'"),
        ({"dtype": "float16", "framework": "np"}, streamer.OptionError, "torch tensors only"),
        ({"framework": "tf"}, streamer.OptionError, "tf"),
        ({"names": ["embed", "nix"]}, streamer.UnknownTensorError, "nix"),
        ({"names": "nix.*"}, streamer.UnknownTensorError, "nix"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_before_reading(folder, options, error, message):
    with pytest.raises(error, match=message):
        streamer.load(folder, **options)


def test_four_and_six_bit_floats_are_as_torch_has_them(tmp_path):
    entries = {"four": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    path = write(tmp_path / "x.safetensors", header_of(**entries) + b"abcd")
    four = streamer.load(path)["four"]
    assert (four.dtype, tuple(four.shape)) == (torch.float4_e2m1fn_x2, (2, 2))
    assert bytes(four.view(torch.uint8).flatten().tolist()) == b"abcd"
    odd = {"odd": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}
    with pytest.raises(streamer.UnsupportedDtypeError, match="the last dimension is odd"):
        streamer.load(write(tmp_path / "z.safetensors", header_of(**odd) + b"abc"))
    six = {"six": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}
    with pytest.raises(streamer.UnsupportedDtypeError, match="F6_E2M3"):
        streamer.load(write(tmp_path / "y.safetensors", header_of(**six) + b"abc"))


def test_numpy_gives_each_value_of_four_bits_a_byte(tmp_path):
    """The first of two values is in the low half of a byte; 0b0010 is 1.0, 0b1111 is -6.0, 0b0001 is 0.5."""
    entries = {"four": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}
    path = write(tmp_path / "x.safetensors", header_of(**entries) + bytes([0xF2, 0x10, 0x2F]))
    right = np.array([[1.0, -6.0, 0.0], [0.5, -6.0, 1.0]], dtype=np.float32)
    four = streamer.load(path, framework="np")["four"]
    assert four.dtype == ml_dtypes.float4_e2m1fn
    assert np.array_equal(four.astype(np.float32), right)
    target = np.zeros((2, 3), dtype=ml_dtypes.float4_e2m1fn)
    streamer.load_into(path, {"four": target}, framework="np")
    assert np.array_equal(target.astype(np.float32), right)
    with streamer.open(path, framework="np") as checkpoint:
        assert np.array_equal(checkpoint["four"][:, 1].astype(np.float32), right[:, 1])
        assert checkpoint["four"].shape == (2, 3)


def test_a_header_longer_than_the_first_read_is_read_on(tmp_path, tensors):
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata={"long": "x" * 100_000})
    assert_same(streamer.load(tmp_path, options=streamer.Options(header_bytes=8)), tensors)


def test_an_empty_checkpoint_gives_an_empty_dict(tmp_path):
    assert streamer.load(write(tmp_path / "x.safetensors", header_of())) == {}
