"""Tensorizer's files: equal to its own reader, and hostile files are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from each_row import each_row
from tensorizer import TensorDeserializer, TensorSerializer

import streamer
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.other_formats.tensorizer import Tensorizer
from streamer.plugins.contract import FormatContract, Sample

HEADER_BYTES = 73  # before the index


def tensors() -> dict[str, torch.Tensor]:
    return {
        "f32": torch.arange(12.0).reshape(3, 4),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "bf16": torch.arange(5).bfloat16(),
        "f8": torch.arange(4).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "complex": torch.ones(2, dtype=torch.complex64),
        "i64": torch.arange(3),
    }


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def write(path: Path) -> None:
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(tensors())
    serializer.close()


class TestTensorizer(FormatContract):
    format = Tensorizer()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def samples(self) -> Sequence[Sample]:
        write(self.folder / "x.tensors")
        arrays = {name: bytes_of(each).numpy() for name, each in tensors().items()}
        by_hand = file([entry("w", "<f4", (2, 3), 6 * 4)], np.arange(6, dtype="f4").tobytes())
        long = file([entry("w", "<f4", (2, 3), 6 * 4, version=5)], bytes(24), version=5, flags=2)
        path = file([entry(b'\x1e["a",0]', "<i2", (1,), 2)], b"\1\0")
        return [
            Sample({"x.tensors": (self.folder / "x.tensors").read_bytes()}, arrays),
            Sample({"x.tensors": by_hand}, {"w": np.arange(6, dtype="f4")}),
            Sample({"x.tensors": long}, {"w": np.zeros(6, "f4")}),
            Sample({"x.tensors": path}, {"a.0": np.ones(1, "i2")}),
        ]


def entry(
    name: str | bytes, dtype: str, shape: Sequence[int], size_bytes: int, *, begin: int | None = None, version: int = 0
) -> Callable[[int], bytes]:
    """Return a function that gives the entry of a tensor whose data begins at an offset."""
    text, kind = name.encode() if isinstance(name, str) else name, dtype.encode()
    head = struct.pack("<I", version) if version else b""
    head += struct.pack("<H", len(text)) + text + b"\0" + bytes([len(kind)]) + kind + bytes([len(shape)])
    head += struct.pack(f"<{len(shape)}{'Q' if version >= 5 else 'I'}", *shape)
    return lambda offset: head + struct.pack("<3Q", 0, offset if begin is None else begin, size_bytes)


def file(
    entries: Sequence[Callable[[int], bytes]],
    data: bytes,
    *,
    version: int = 2,
    flags: int = 0,
    count: int | None = None,
    size_bytes: int | None = None,
) -> bytes:
    """Write a file by hand, so that any part of it can be wrong; all tensors begin with the data."""
    length = sum(len(each(0)) for each in entries)
    index = b"".join(each(HEADER_BYTES + length) for each in entries)
    head = b"|TZR|" + struct.pack("<I", version) + flags.to_bytes(32, "little")
    counts = (len(entries) if count is None else count, length if size_bytes is None else size_bytes)
    return head + struct.pack("<4Q", 0, 0, *counts) + index + data


@pytest.mark.parametrize("uri", ["x.tensors", ""])
def test_tensors_equal_those_of_tensorizer(tmp_path: Path, uri: str) -> None:
    write(tmp_path / "x.tensors")
    loaded = streamer.load(tmp_path / uri)
    with TensorDeserializer(str(tmp_path / "x.tensors"), device="cpu") as expected:
        assert loaded.keys() == expected.keys()
        for name, tensor in expected.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(bytes_of(loaded[name]), bytes_of(tensor)), name


W = entry("w", "<f4", (4,), 16)
HUGE = 1 << 62

HOSTILE: dict[str, Callable[[], bytes]] = {
    "version 0": lambda: file([W], bytes(16), version=0),
    "version 6": lambda: file([W], bytes(16), version=6),
    "an unknown feature": lambda: file([W], bytes(16), version=5, flags=4),
    "a feature in the last byte": lambda: file([W], bytes(16), version=5, flags=1 << 255),
    "an index of exabytes": lambda: file([W], bytes(16), size_bytes=HUGE),
    "exatensors": lambda: file([W], bytes(16), count=HUGE),
    "more tensors than there are": lambda: file([W], bytes(16) * 9, count=2, size_bytes=100),
    "a name behind the index": lambda: file([W], bytes(16)).replace(b"\1\0w", b"\xff\xffw"),
    "a name that is no UTF-8": lambda: file([entry(b"\xff", "<f4", (4,), 16)], bytes(16)),
    "a path that is no JSON": lambda: file([entry(b"\x1e[", "<f4", (4,), 16)], bytes(16)),
    "a path that is nested": lambda: file([entry(b"\x1e" + b"[" * 9000, "<f4", (4,), 16)], bytes(16)),
    "a path of objects": lambda: file([entry(b'\x1e[{"a":1}]', "<f4", (4,), 16)], bytes(16)),
    "a path that is a text": lambda: file([entry(b'\x1e"a"', "<f4", (4,), 16)], bytes(16)),
    "the same name twice": lambda: file([W, W], bytes(16)),
    "an unknown dtype": lambda: file([entry("w", "<f3", (4,), 16)], bytes(16)),
    "a dtype of torch that is none": lambda: file([entry("w", "<V2\0torch.load", (8,), 16)], bytes(16)),
    "objects": lambda: file([entry("w", "|O", (2,), 16)], bytes(16)),
    "a big-endian dtype": lambda: file([entry("w", ">f4", (4,), 16)], bytes(16)),
    "an empty dtype": lambda: file([entry("w", "", (4,), 16)], bytes(16)),
    "other bytes than the shape": lambda: file([entry("w", "<f4", (4,), 12)], bytes(16)),
    "a tensor without data": lambda: file([entry("w", "<f4", (4,), 0)], bytes(16)),
    "a shape whose product overflows": lambda: file([entry("w", "<f4", (1 << 31,) * 3, 16)], bytes(16)),
    "data behind the file": lambda: file([entry("w", "<f4", (4,), 16, begin=1 << 40)], bytes(16)),
    "data beyond 63 bits": lambda: file([entry("w", "<f4", (4,), 16, begin=(1 << 64) - 16)], bytes(16)),
    "two hundred dimensions": lambda: file([entry("w", "<f4", (1,) * 199 + (4,), 16)], bytes(16)),
    "data that is cut short": lambda: file([W], bytes(15)),
    "a header that is cut short": lambda: file([W], bytes(16))[:40],
    "an index that is cut short": lambda: file([W], b"")[:80],
}


@each_row("what", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "x.tensors").write_bytes(HOSTILE[what]())
    with pytest.raises((FormatError, TruncatedError)) as caught:
        streamer.open(tmp_path)
    assert "x.tensors" in str(caught.value)
