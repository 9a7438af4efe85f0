"""Files of torch.save: equal to torch.load, nothing in them is run, and what is hostile is refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row

import streamer
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.other_formats.interface import BytesFile
from streamer.core.other_formats.torch_zip import TorchZip
from streamer.plugins.contract import FormatContract, Sample


def saved(value: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **how)
    return buffer.getvalue()


def array_of(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor, row by row."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().copy()


def many_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(6000, dtype=torch.float32).reshape(60, 100)
    return {
        "base": base,
        "tied": base,
        "rows": base[10:20],
        "column": base[:, 3],
        "transposed": base.t(),
        "expanded": torch.arange(4.0).reshape(4, 1).expand(4, 7),
        "every_other": torch.arange(20, dtype=torch.int64)[3::2],
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "bf16": torch.arange(9).bfloat16(),
        "f16": torch.arange(9).half(),
        "f8": torch.arange(8).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False, True]),
        "i8": torch.arange(-3, 3, dtype=torch.int8),
        "u16": torch.arange(5).to(torch.uint16),
        "c64": torch.arange(3.0) * 1j,
        "parameter": torch.nn.Parameter(torch.ones(3, 2)),
    }


def arrays_of(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: array_of(each) for name, each in tensors.items()}


def with_byte_order(data: bytes, order: bytes) -> bytes:
    """Write the archive again with another byte order, and its storages in it."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/byteorder"):
                content = order
            elif "/data/" in name:
                content = np.frombuffer(content, "<f4").astype(">f4").tobytes()
            new.writestr(name, content)
    return target.getvalue()


def deflated(data: bytes) -> bytes:
    """Write the archive again with compressed members."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return target.getvalue()


class TestTorchZip(FormatContract):
    format = TorchZip()

    def samples(self) -> Sequence[Sample]:
        tensors = many_tensors()
        floats = {"a": torch.arange(600.0).reshape(20, 30), "b": torch.arange(12.0).reshape(3, 4).t()}
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        state = dict(module.state_dict())
        other = {"optimizer.pt": b"", "training_args.bin": b"x", "config.json": b"{}"}
        return [
            Sample({"pytorch_model.bin": saved(tensors), **other}, arrays_of(tensors)),
            Sample({"model.pt": saved(module.state_dict())}, arrays_of(state)),
            Sample(
                {
                    "pytorch_model-00001-of-00002.bin": saved({"a": floats["a"]}),
                    "pytorch_model-00002-of-00002.bin": saved({"b": floats["b"]}),
                },
                arrays_of(floats),
            ),
            Sample({"x.pth": with_byte_order(saved(floats), b"big")}, arrays_of(floats)),
            Sample({"x.ckpt": deflated(saved(floats))}, arrays_of(floats)),
            Sample({"one.pt": saved(torch.arange(3))}, {"": np.arange(3)}),
        ]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # torch's own remark
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_equal_those_of_torch_load(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(many_tensors(), path, pickle_protocol=protocol)
    expected = torch.load(path, weights_only=protocol < 4)  # torch reads newer ones only as code
    loaded = streamer.load(path)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert np.array_equal(array_of(loaded[name]), array_of(tensor)), name


def test_each_tensor_has_memory_of_its_own(tmp_path: Path) -> None:
    torch.save(many_tensors(), tmp_path / "x.pt")
    loaded = streamer.load(tmp_path / "x.pt")
    loaded["base"].zero_()
    assert loaded["tied"].sum() > 0
    assert loaded["rows"].sum() > 0
    assert all(each.is_contiguous() for each in loaded.values())


def test_nested_containers_become_names_and_other_values_metadata(tmp_path: Path) -> None:
    value = {
        "state_dict": OrderedDict(w=torch.ones(2)),
        "optimizer": {"state": {0: {"step": torch.tensor(7.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "epoch": 3,
        "note": "naïve",
        "nothing": None,
    }
    torch.save(value, tmp_path / "x.ckpt")
    with streamer.open(tmp_path / "x.ckpt") as checkpoint:
        assert checkpoint.keys() == ["optimizer.state.0.step", "state_dict.w"]
        assert checkpoint.metadata() == {
            "optimizer.param_groups.0.lr": "0.1",
            "optimizer.param_groups.0.params.0": "0",
            "epoch": "3",
            "note": "naïve",
            "nothing": "null",
        }


@pytest.mark.parametrize(
    "content", [{"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)}, {1: torch.ones(2), "1": torch.zeros(2)}]
)
def test_two_tensors_with_one_path_are_refused_with_a_way_out(tmp_path: Path, content: dict[Any, Any]) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(FormatError, match="two tensors have the path") as caught:
        streamer.load(tmp_path / "model.pt")
    assert "Rename one of their keys" in str(caught.value)


@pytest.mark.parametrize("content", [{"a": {"b": 1}, "a.b": 2}, {1: "x", "1": "y"}])
def test_two_values_with_one_path_are_refused_and_none_is_dropped_regression(tmp_path: Path, content: Any) -> None:
    torch.save({"w": torch.ones(2), "": content}, tmp_path / "model.pt")
    with pytest.raises(FormatError, match=r"two values have the path .* Rename one of their keys"):
        streamer.load(tmp_path / "model.pt")


def test_equal_values_with_one_path_are_one(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "a": {"b": 1}, "a.b": 1}, tmp_path / "model.pt")
    with streamer.open(tmp_path / "model.pt") as checkpoint:
        assert checkpoint.metadata() == {"a.b": "1"}


@pytest.mark.parametrize("nested", [lambda each: {"s": each}, lambda each: [{"s": [each]}]], ids=["flat", "deep"])
@pytest.mark.parametrize("kind", ["untyped_storage", "storage"])
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_is_no_list_of_values_regression(tmp_path: Path, kind: str, nested: Callable[[Any], Any]) -> None:
    torch.save(nested(getattr(torch.arange(4.0), kind)()), tmp_path / "model.pt")
    with pytest.raises(FormatError, match="is a storage, not a tensor"):
        streamer.load(tmp_path / "model.pt")


@pytest.mark.parametrize("dtype", ["complex128", "complex32", "float4_e2m1fn_x2"])
def test_a_dtype_that_is_not_read_is_named_with_its_tensor_regression(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype, None)
    if kind is None:
        pytest.skip(f"this torch has no {dtype}")
    torch.save({"odd": torch.zeros(16, dtype=torch.uint8).view(kind)}, tmp_path / "model.pt")
    with pytest.raises(FormatError, match=f"tensor 'odd' has the dtype '{dtype}', which is not read. Cast it"):
        streamer.load(tmp_path / "model.pt")


def test_a_storage_shared_by_thousands_of_views_is_read(tmp_path: Path) -> None:
    flat = torch.arange(8000.0)
    torch.save({f"w{i}": flat[i * 4 : i * 4 + 4] for i in range(2000)}, tmp_path / "x.pt")
    loaded = streamer.load(tmp_path / "x.pt")
    assert all(torch.equal(loaded[f"w{i}"], flat[i * 4 : i * 4 + 4]) for i in range(2000))


class RanError(Exception):
    """Raised by code of a pickle, if it is run."""


def run_code() -> None:
    raise RanError


class RunsCode:
    def __reduce__(self) -> Any:
        return run_code, ()


def archive(pickled: bytes, members: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/byteorder", b"little")
        for name, content in (members or {"archive/data/0": bytes(16)}).items():
            file.writestr(name, content)
    return target.getvalue()


def tensor_pickle(offset: int = 0, shape: Any = (4,), strides: Any = (1,), count: int = 4, key: Any = "0") -> bytes:
    """Pickle the description of a tensor of F32, as torch does it."""
    return described(
        ("storage", GlobalOf("torch", "FloatStorage"), key, "cpu", count), offset, shape, strides, False, {}
    )


class GlobalOf:
    """A name in a pickle."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


def described(pid: Any, *arguments: Any, function: str = "_rebuild_tensor_v2") -> bytes:
    return b"\x80\x02}U\x01w" + tensor_code(pid, *arguments, function=function) + b"s."


def tensor_code(pid: Any, *arguments: Any, function: str = "_rebuild_tensor_v2") -> bytes:
    body = b"".join(code_of(each) for each in pid)
    rest = b"".join(code_of(each) for each in arguments)
    return b"ctorch._utils\n" + function.encode() + b"\n((" + body + b"tQ" + rest + b"tR"


def code_of(value: Any) -> bytes:
    if isinstance(value, GlobalOf):
        return f"c{value.module}\n{value.name}\n".encode()
    return pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"").replace(b"q\x01", b"")


def nested_pickle(levels: int, width: int) -> bytes:
    """Pickle lists of the same list: few bytes, and width to the power of levels leaves."""
    value: Any = [1]
    for _ in range(levels):
        value = [value] * width
    return pickle.dumps({"w": value}, 2)


def cycle() -> bytes:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return pickle.dumps(value, 2)


HOSTILE_PICKLES: dict[str, Callable[[], bytes]] = {
    "runs code": lambda: pickle.dumps({"w": RunsCode()}, 2),
    "runs os.system": lambda: b"\x80\x02cos\nsystem\n(U\x04trueTtR.".replace(b"T", b"", 1),
    "names eval": lambda: b"\x80\x02c__builtin__\neval\n(U\x011tR.",
    "names getattr of builtins": lambda: b"\x80\x02cbuiltins\ngetattr\n.",
    "names another function of torch": lambda: b"\x80\x02ctorch\nload\n.",
    "names a dotted path": lambda: b"\x80\x04\x8c\x05torch\x8c\x0b_utils.os.x\x93.",
    "calls itself through its record": lambda: b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R}U\x09__class__Nsb.",
    "sets attributes of a function": lambda: b"\x80\x02ccollections\nOrderedDict\n}U\x01xK\x01sb.",
    "an extension code": lambda: b"\x80\x02\x82\x01.",
    "a persistent id of another kind": lambda: b"\x80\x02U\x04evilQ.",
    "a memo position of four billion": lambda: b"\x80\x02Nr\xff\xff\xff\xff.",
    "a text of four gigabytes": lambda: b"\x80\x02X\xff\xff\xff\xff.",
    "a frame of exabytes": lambda: b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "ten to the power of thirty leaves": lambda: nested_pickle(30, 10),
    "ten million leaves": lambda: nested_pickle(7, 10),
    "a container that holds itself": cycle,
    "a hundred thousand nested lists": lambda: b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a number of a million digits": lambda: pickle.dumps({"w": 1 << 3_000_000}, 2),
    "a set": lambda: pickle.dumps({"w": {1}}, 4),
    "no stop": lambda: b"\x80\x02}",
    "nothing": lambda: b"",
    "a storage that the archive lacks": lambda: tensor_pickle(key="7"),
    "a storage outside of the archive": lambda: tensor_pickle(key="../../etc/passwd"),
    "a storage named by a number": lambda: tensor_pickle(key=0),
    "more elements than the storage": lambda: tensor_pickle(shape=(5,)),
    "an offset behind the storage": lambda: tensor_pickle(offset=1),
    "a negative offset": lambda: tensor_pickle(offset=-1),
    "a negative dimension": lambda: tensor_pickle(shape=(-4,)),
    "a negative stride": lambda: tensor_pickle(strides=(-1,)),
    "a stride of exabytes": lambda: tensor_pickle(strides=(1 << 62,)),
    "a dimension of exabytes": lambda: tensor_pickle(shape=(1 << 62,)),
    "a dimension beyond 64 bits": lambda: tensor_pickle(shape=(1 << 80,), strides=(0,)),
    "a shape of floats": lambda: tensor_pickle(shape=(4.0,)),
    "a shape of booleans": lambda: tensor_pickle(shape=(True,)),
    "fewer strides than dimensions": lambda: tensor_pickle(shape=(2, 2)),
    "a hundred dimensions": lambda: tensor_pickle(shape=(1,) * 100, strides=(1,) * 100),
    "a storage of another size": lambda: tensor_pickle(count=5),
    "a storage of a negative size": lambda: tensor_pickle(count=-4),
    "a storage of an unknown type": lambda: described(
        ("storage", GlobalOf("torch", "QInt8Storage"), "0", "cpu", 4), 0, (4,), (1,), False, {}
    ),
    "a tensor without arguments": lambda: b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n)Rs.",
    "a parameter of a number": lambda: b"\x80\x02}U\x01wctorch._utils\n_rebuild_parameter\n(K\x01tRs.",
    "a sparse tensor": lambda: b"\x80\x02}U\x01wctorch._utils\n_rebuild_sparse_tensor\n)Rs.",
}


@each_row("what", HOSTILE_PICKLES)
def test_a_hostile_pickle_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(archive(HOSTILE_PICKLES[what]()))
    began = time.thread_time()
    with pytest.raises(FormatError) as caught:
        streamer.open(path)
    assert caught.value.uri == str(path)
    assert time.thread_time() - began < 10


def patched(data: bytes, signature: bytes, offset: int, value: bytes, which: int = 0) -> bytes:
    """Replace bytes at an offset behind the nth occurrence of a signature."""
    at = -1
    for _ in range(which + 1):
        at = data.index(signature, at + 1)
    return data[: at + offset] + value + data[at + offset + len(value) :]


CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


def good() -> bytes:
    return archive(tensor_pickle())


def with_duplicate() -> bytes:
    data = archive(tensor_pickle(), {"archive/data/0": bytes(16), "archive/data/1": bytes(16)})
    return data.replace(b"archive/data/1", b"archive/data/0")


def zip64_lie() -> bytes:
    """Claim in a zip64 field that a stored member has exabytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file, file.open("archive/data.pkl", "w", force_zip64=True) as member:
        member.write(tensor_pickle())
    data = target.getvalue()
    extra = struct.pack("<HHQQ", 1, 16, 1 << 60, 1 << 60)
    at = data.index(CENTRAL)
    name_length = int.from_bytes(data[at + 28 : at + 30], "little")
    entry = (
        data[at : at + 20]
        + b"\xff" * 8
        + struct.pack("<HH", name_length, len(extra))
        + data[at + 32 : at + 46 + name_length]
    )
    directory = entry + extra
    return data[:at] + directory + struct.pack("<4s4H2LH", END, 0, 0, 1, 1, len(directory), at, 0)


HOSTILE_ZIPS: dict[str, Callable[[], bytes]] = {
    "a directory at another place": lambda: patched(good(), END, 16, struct.pack("<L", 3)),
    "a directory of another length": lambda: patched(good(), END, 12, struct.pack("<L", 1 << 30)),
    "more members than there are": lambda: patched(good(), END, 8, struct.pack("<HH", 9, 9)),
    "fewer members than there are": lambda: patched(good(), END, 8, struct.pack("<HH", 1, 1)),
    "another disk": lambda: patched(good(), END, 4, struct.pack("<H", 1)),
    "a comment": lambda: patched(good(), END, 20, struct.pack("<H", 3)) + b"abc",
    "bytes behind the archive": lambda: good() + b"\0",
    "bytes before the archive": lambda: LOCAL + good(),
    "a member that begins elsewhere": lambda: patched(good(), CENTRAL, 42, struct.pack("<L", 7)),
    "a member that begins behind the file": lambda: patched(good(), CENTRAL, 42, struct.pack("<L", 1 << 30)),
    "a member that overlaps with the next": lambda: patched(
        patched(good(), CENTRAL, 20, struct.pack("<LL", 400, 400)), LOCAL, 18, struct.pack("<LL", 400, 400)
    ),
    "two members at one place": lambda: patched(good(), CENTRAL, 42, struct.pack("<L", 0), which=1),
    "a name that the local header lacks": lambda: good().replace(b"archive/byteorder", b"archive/byteordex", 1),
    "an encrypted member": lambda: patched(good(), CENTRAL, 8, b"\1\0"),
    "an unknown compression": lambda: patched(good(), CENTRAL, 10, b"\x63\0"),
    "a stored member of two sizes": lambda: patched(good(), CENTRAL, 24, struct.pack("<L", 1 << 30)),
    "zip64 without its field": lambda: patched(good(), CENTRAL, 24, b"\xff" * 4),
    "zip64 with exabytes": zip64_lie,
    "the same name twice": with_duplicate,
    "no pickle": lambda: archive(b"").replace(b"data.pkl", b"data.pkx"),
    "code of TorchScript": lambda: archive(
        tensor_pickle(), {"archive/constants.pkl": b"", "archive/data/0": bytes(16)}
    ),
    "only an end record": lambda: good()[-22:],
    "only a beginning": lambda: LOCAL + bytes(100),
}


@each_row("what", HOSTILE_ZIPS)
def test_a_hostile_zip_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(HOSTILE_ZIPS[what]())
    with pytest.raises((FormatError, TruncatedError)):
        streamer.open(path)


def test_the_archive_of_these_tests_is_read(tmp_path: Path) -> None:
    """The hostile ones differ from it in one thing each."""
    (tmp_path / "x.pt").write_bytes(good())
    assert torch.equal(streamer.load(tmp_path / "x.pt")["w"], torch.zeros(4))


BOMB_BYTES = 64 << 20


def test_a_deflate_bomb_is_refused_where_its_size_is_a_lie(tmp_path: Path) -> None:
    bomb = deflated_member("archive/data/0", bytes(BOMB_BYTES), claimed=16)
    with pytest.raises(FormatError, match="inflates to more than the 16 bytes"):
        streamer.load(written(tmp_path, bomb))


def test_a_wrong_crc_of_a_compressed_storage_is_found(tmp_path: Path) -> None:
    data = archive(
        tensor_pickle(count=100_000, shape=(100_000,)), {"archive/data/0": bytes(400_000)}, zipfile.ZIP_DEFLATED
    )
    broken = patched(data, CENTRAL, 16, b"\1\2\3\4", which=2)
    with pytest.raises(FormatError, match="CRC-32"):
        streamer.load(written(tmp_path, broken))


def deflated_member(name: str, content: bytes, claimed: int) -> bytes:
    data = archive(tensor_pickle(), {name: content}, zipfile.ZIP_DEFLATED)
    data = patched(data, CENTRAL, 24, struct.pack("<L", claimed), which=2)
    return patched(data, LOCAL, 22, struct.pack("<L", claimed), which=2)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "x.pt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "model.npz", "model.tensors"])
def test_what_was_saved_in_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n" * 3)
    with pytest.raises(FormatError, match="but a Git LFS pointer"):
        streamer.load(tmp_path)


def test_a_whole_module_says_how_to_save_its_tensors(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "x.pt")
    with pytest.raises(FormatError, match=r"names 'torch\.nn\.modules\.linear\.Linear'.*save its tensors alone"):
        streamer.load(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt"])
def test_a_file_of_an_old_pytorch_says_how_to_save_it_again(tmp_path: Path, name: str) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / name, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"saved by PyTorch before 1\.6.*Save it again: torch\.save"):
        streamer.load(tmp_path / name)


def test_a_plain_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(FormatError):
        streamer.load(tmp_path / "x.pt")


def test_the_index_is_small_beside_the_weights() -> None:
    data = saved({"w": torch.zeros(4 << 20)})
    reads: list[int] = []

    class Counting(BytesFile):
        def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            reads.append(sum(end - begin for begin, end in ranges))
            return super()._read(ranges)

    TorchZip().read_index([Counting(data)])
    assert sum(reads) < 100_000
    assert len(reads) <= 5


def test_what_a_pickle_names_is_in_the_message(tmp_path: Path) -> None:
    path = written(tmp_path, archive(pickle.dumps({"w": RunsCode()}, 2)))
    with pytest.raises(FormatError, match=r"run_code.*nothing of it was run") as caught:
        streamer.load(path)
    assert os.fspath(path) in str(caught.value)


def with_attributes(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note, tensor.scale = "left", torch.ones(2)  # type: ignore[attr-defined]
    return tensor


BESIDE: dict[str, Callable[[], Any]] = {
    "a counter": lambda: Counter({"a": 1, 3: 2}),
    "an empty counter": Counter,
    "a device": lambda: torch.device("cuda", 1),
    "a device without number": lambda: torch.device("cpu"),
    "a dtype": lambda: torch.float16,
    "a dtype that safetensors lacks": lambda: torch.complex128,
    "a size": lambda: torch.Size([2, 3]),
    "bytes": lambda: b"\x00\xff",
    "a bytearray": lambda: bytearray(b"ab"),
    "a set": lambda: {1, "two"},
    "a complex number": lambda: 1 + 2j,
    "a layout": lambda: torch.strided,
    "keys of other types": lambda: {(1, 2): "x", 1.5: "y", None: "z", True: "w"},
    "all of it, deep": lambda: OrderedDict(a=[{"b": (torch.device("cpu"), {1}, b"x")}], c=Counter("aab")),
}


@each_row("make", BESIDE.values())
def test_values_that_torch_reads_beside_the_weights_do_not_refuse_the_file_regression(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    weights = {"w": torch.arange(6.0).view(2, 3), "p": torch.nn.Parameter(torch.ones(2))}
    torch.save({"model": weights, "beside": make()}, tmp_path / "model.pt")
    torch.load(tmp_path / "model.pt", weights_only=True)
    loaded = streamer.load(tmp_path / "model.pt")
    assert loaded.keys() == {"model.w", "model.p"}
    assert torch.equal(loaded["model.w"], weights["w"])
    with streamer.open(tmp_path / "model.pt") as checkpoint:
        assert any(name.startswith("beside") for name in checkpoint.metadata())


@pytest.mark.parametrize("kind", [torch.Tensor.clone, torch.nn.Parameter, torch.nn.Buffer], ids=["plain", "p", "b"])
def test_attributes_of_tensors_are_remarked_regression(kind: Callable[[Any], Any], tmp_path: Path) -> None:
    tensor = with_attributes(kind(torch.arange(4.0)))
    torch.save({"w": tensor, "plain": torch.ones(2)}, tmp_path / "model.bin")
    with streamer.stream(tmp_path / "model.bin") as stream:
        loaded = dict(stream)
    assert torch.equal(loaded["w"], tensor)
    assert "attributes of tensors are not read: w.note, w.scale" in str(stream.report)
