"""GGUF: equal to the library gguf, and hostile files are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_row import each_row
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize

import streamer
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.other_formats.gguf import BLOCKS, TYPES_KEY, Gguf
from streamer.plugins.contract import FormatContract, Sample

QUANTISED = ["Q4_0", "Q5_1", "Q8_0"]


def write_model(path: Path, *, alignment: int = 32, tokens: int = 50) -> None:
    random = np.random.default_rng(3)
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_name("tiny")
    writer.add_context_length(4096)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"token {i} ü" for i in range(tokens)])
    writer.add_token_scores([float(i) for i in range(tokens)])
    writer.add_bool("general.is_tiny", True)
    writer.add_tensor("f32", random.standard_normal((5, 7)).astype(np.float32))
    writer.add_tensor("f16", random.standard_normal((3, 4, 2)).astype(np.float16))
    writer.add_tensor("f64", random.standard_normal(3))
    writer.add_tensor("i8", np.arange(-5, 6, dtype=np.int8))
    writer.add_tensor("i32", np.arange(6, dtype=np.int32).reshape(2, 3))
    bf16 = torch.arange(12).reshape(3, 4).bfloat16().view(torch.uint8).numpy()
    writer.add_tensor("bf16", bf16, raw_dtype=GGMLQuantizationType.BF16)
    for name in QUANTISED:
        kind = GGMLQuantizationType[name]
        weight = random.standard_normal((6, 64)).astype(np.float32)
        writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def arrays_of(path: Path) -> dict[str, Any]:
    """Read all tensors with the library."""
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


class TestGguf(FormatContract):
    format = Gguf()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def samples(self) -> Sequence[Sample]:
        path = self.folder / "model.gguf"
        write_model(path)
        parts = {}
        tensors: dict[str, Any] = {}
        for number in (1, 2):
            array = np.full((2, number), number, np.float32)
            name = f"model-0000{number}-of-00002.gguf"
            parts[name] = split_part(number - 1, 2, {f"w{number}": array})
            tensors[f"w{number}"] = array
        return [
            Sample({"model.gguf": path.read_bytes(), "config.json": b"{}"}, arrays_of(path)),
            Sample(parts, tensors),
        ]


def split_part(number: int, count: int, arrays: dict[str, Any]) -> bytes:
    values = [("split.no", 2, number), ("split.count", 2, count), ("split.tensors.count", 5, count)]
    return gguf(values, [(name, each.shape, 0, each.tobytes()) for name, each in arrays.items()])


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


FORMATS = {2: "<H", 4: "<I", 5: "<i", 7: "<?"}


def value_bytes(kind: int, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return text(value) if kind == 8 else struct.pack(FORMATS[kind], value)


def gguf(
    values: Sequence[tuple[Any, int, Any]] = (),
    tensors: Sequence[tuple[str, Sequence[int], int, bytes]] = (),
    *,
    head: bytes = b"GGUF\3\0\0\0",
    counts: tuple[int, int] | None = None,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """Write a file by hand, so that any part of it can be wrong."""
    body = head + struct.pack("<QQ", *(counts or (len(tensors), len(values))))
    body += b"".join(text(key) + struct.pack("<I", kind) + value_bytes(kind, value) for key, kind, value in values)
    data = b""
    for index, (name, shape, kind, content) in enumerate(tensors):
        offset = len(data) if offsets is None else offsets[index]
        body += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        body += struct.pack("<IQ", kind, offset)
        data += content + bytes(-len(content) % 32)
    return body + bytes(-len(body) % 32) + data


def test_tensors_equal_those_of_the_gguf_library(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path)
    loaded = streamer.load(path, framework="np")
    expected = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        if name != "bf16":  # the library has no such dtype, and gives bytes
            assert loaded[name].dtype == tensor.data.dtype, name
            assert loaded[name].shape == tensor.data.shape, name
        assert loaded[name].tobytes() == tensor.data.tobytes(), name
    assert streamer.load(path)["bf16"].dtype == torch.bfloat16


def test_types_and_metadata_are_there(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf")
    with streamer.open(tmp_path) as checkpoint:
        metadata = checkpoint.metadata()
    assert json.loads(metadata[TYPES_KEY]) == {name: name for name in QUANTISED}
    assert metadata["general.name"] == "tiny"
    assert metadata["llama.context_length"] == "4096"
    assert metadata["general.is_tiny"] == "true"
    assert json.loads(metadata["tokenizer.ggml.tokens"])[3] == "token 3 ü"


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_tensors_are_aligned_as_the_file_says(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, alignment=alignment)
    loaded = streamer.load(path, names=["f32", "Q8_0"], framework="np")
    expected = arrays_of(path)
    assert all(np.array_equal(each, expected[name]) for name, each in loaded.items())


def test_metadata_longer_than_the_first_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, tokens=150_000)
    assert path.stat().st_size > 3 << 20
    assert np.array_equal(streamer.load(path, names="f32", framework="np")["f32"], arrays_of(path)["f32"])


def test_the_table_of_types_is_that_of_the_library() -> None:
    for kind, (elements, block_bytes) in GGML_QUANT_SIZES.items():
        if elements > 1:
            assert BLOCKS[int(kind)] == (kind.name, elements, block_bytes)


def test_parts_of_a_split_model_are_joined(tmp_path: Path) -> None:
    for number in (1, 2):
        part = split_part(number - 1, 2, {f"w{number}": np.full(3, number, np.float32)})
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(part)
    for uri in (tmp_path, tmp_path / "m-*-of-00002.gguf"):
        assert sorted(streamer.load(uri)) == ["w1", "w2"]
    with pytest.raises(FormatError, match=r"a part of a model of 2 parts.*together: m-\*-of-00002.gguf"):
        streamer.load(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(streamer.MissingShardError, match="00002-of-00002"):
        streamer.load(tmp_path)


def test_parts_of_two_models_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        arrays = {f"w{number}.{i}": np.ones(3, np.float32) for i in range(number)}
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(split_part(number - 1, 2, arrays))
    with pytest.raises(FormatError, match="the parts hold 3 tensors, and say 2"):
        streamer.load(tmp_path)


def test_several_models_in_a_folder_are_to_be_named(tmp_path: Path) -> None:
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf"):
        (tmp_path / name).write_bytes(gguf())
    with pytest.raises(FormatError, match=r"holds 2 models of GGUF: a-Q4_0\.gguf, a-Q8_0\.gguf.*Name the one"):
        streamer.load(tmp_path)


ONE = [("w", (4,), 0, bytes(16))]
HUGE = 1 << 62


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def nested(levels: int) -> bytes:
    return array(9, 1) * levels + array(4, 0)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "another magic": lambda: gguf(head=b"GGUX\3\0\0\0"),
    "version 1": lambda: gguf(head=b"GGUF\1\0\0\0"),
    "version 4": lambda: gguf(head=b"GGUF\4\0\0\0"),
    "big-endian": lambda: gguf(head=b"GGUF\0\0\0\3"),
    "exatensors": lambda: gguf(counts=(HUGE, 0)),
    "exakeys": lambda: gguf(counts=(0, HUGE)),
    "more tensors than there are": lambda: gguf(tensors=ONE, counts=(2, 0)),
    "more keys than there are": lambda: gguf([("a", 4, 1)], ONE, counts=(1, 9)),
    "a key of exabytes": lambda: gguf([("a", 4, 1)]).replace(text("a"), struct.pack("<Q", HUGE) + b"a"),
    "a text of exabytes": lambda: gguf([("a", 8, struct.pack("<Q", HUGE))]),
    "a text beyond 64 bits together": lambda: gguf([("a", 8, struct.pack("<Q", (1 << 64) - 1))]),
    "a key that is no text": lambda: gguf([(b"\xff\xfe", 4, 1)]),
    "a value of an unknown type": lambda: gguf([("a", 99, b"\0" * 8)]),
    "an array of an unknown type": lambda: gguf([("a", 9, array(99, 3))]),
    "an empty array of an unknown type": lambda: gguf([("a", 9, array(99, 0))]),
    "an array of exanumbers": lambda: gguf([("a", 9, array(4, HUGE))]),
    "an array of exatexts": lambda: gguf([("a", 9, array(8, HUGE))]),
    "an array of exaarrays": lambda: gguf([("a", 9, array(9, HUGE))]),
    "arrays in arrays in arrays": lambda: gguf([("a", 9, nested(1000))]),
    "the same key twice": lambda: gguf([("a", 4, 1), ("a", 4, 2)]),
    "the same tensor twice": lambda: gguf(tensors=ONE * 2),
    "a tensor name with a lone surrogate": lambda: gguf(tensors=ONE).replace(text("w"), text(b"\xed\xa0\x80")),
    "alignment zero": lambda: gguf([("general.alignment", 4, 0)], ONE),
    "alignment three": lambda: gguf([("general.alignment", 4, 3)], ONE),
    "an alignment of gigabytes": lambda: gguf([("general.alignment", 4, 1 << 31)], ONE),
    "an alignment that is a text": lambda: gguf([("general.alignment", 8, "32")], ONE),
    "an alignment that is negative": lambda: gguf([("general.alignment", 5, -32)], ONE),
    "a billion dimensions": lambda: gguf(tensors=ONE).replace(text("w") + b"\1\0\0\0", text("w") + b"\0\0\0\x40"),
    "a dimension of exabytes": lambda: gguf(tensors=[("w", (HUGE,), 0, bytes(16))]),
    "dimensions whose product overflows": lambda: gguf(tensors=[("w", (1 << 63, 1 << 63, 4), 0, bytes(16))]),
    "an overflow beside a zero": lambda: gguf(tensors=[("w", (1 << 63, 1 << 63, 0), 0, b"")]),
    "an unknown type of tensor": lambda: gguf(tensors=[("w", (4,), 777, bytes(16))]),
    "a removed type of tensor": lambda: gguf(tensors=[("w", (4,), 4, bytes(16))]),
    "half a block": lambda: gguf(tensors=[("w", (16,), 2, bytes(18))]),
    "a block without dimensions": lambda: gguf(tensors=[("w", (), 2, bytes(18))]),
    "an offset behind the file": lambda: gguf(tensors=ONE, offsets=[1 << 20]),
    "an offset of exabytes": lambda: gguf(tensors=ONE, offsets=[(1 << 64) - 32]),
    "an offset that is not aligned": lambda: gguf(tensors=ONE, offsets=[8]),
    "tensors that overlap": lambda: gguf(tensors=[*ONE, ("v", (4,), 0, bytes(16))], offsets=[0, 0]),
    "data that is cut short": lambda: gguf(tensors=[("w", (40,), 0, bytes(160))])[:-40],
    "metadata that is cut short": lambda: gguf([("a", 8, "text")])[:40],
    "only a magic": lambda: b"GGUF",
}


@each_row("what", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "model.gguf").write_bytes(HOSTILE[what]())
    with pytest.raises((FormatError, TruncatedError)) as caught:
        streamer.open(tmp_path / "model.gguf") if what != "another magic" else streamer.load(tmp_path)
    assert "model.gguf" in str(caught.value)


def test_the_file_of_these_tests_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf([("a", 4, 1)], ONE))
    assert torch.equal(streamer.load(tmp_path / "x.gguf")["w"], torch.zeros(4))
    (tmp_path / "x.gguf").write_bytes(gguf())
    assert streamer.load(tmp_path / "x.gguf") == {}
