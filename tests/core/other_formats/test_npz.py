"""NumPy's archives: equal to numpy.load, nothing is unpickled, and hostile archives are refused."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_row import each_row

import streamer
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.other_formats.npz import Npz
from streamer.core.other_formats.readers import Checked
from streamer.plugins.contract import FormatContract, Sample


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(5)
    return {
        "f4": random.standard_normal((20, 30)).astype("f4"),
        "fortran": np.asfortranarray(random.standard_normal((30, 40))),
        "fortran_3d": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
        "big": np.arange(7, dtype=">i4"),
        "big_fortran": np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)),
        "big_complex": np.arange(4).astype(">c8") * 2j,
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 3)),
        "flags": np.array([True, False]),
        "complex": np.ones(3, "c8"),
        "half": np.arange(5, dtype="f2"),
        "sub/folder": np.arange(3, dtype="u8"),
        "naïve": np.arange(3, dtype="i1"),
    }


def saved(save: Callable[..., None] = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays())
    return buffer.getvalue()


def row_by_row(array: Any) -> Any:
    array = np.asarray(array)
    return np.ascontiguousarray(array).reshape(array.shape).astype(array.dtype.newbyteorder("<"))


class TestNpz(FormatContract):
    format = Npz()

    def samples(self) -> Sequence[Sample]:
        expected = {name: row_by_row(each) for name, each in arrays().items()}
        return [Sample({"x.npz": saved(save), "y.npy": b""}, expected) for save in (np.savez, np.savez_compressed)]


@each_row("name", ["f4", "fortran", "big", "big_fortran", "flags", "scalar"])
def test_a_stored_array_with_another_crc_than_the_archive_says_is_refused_regression(tmp_path: Path, name: str) -> None:
    array, path = arrays()[name], tmp_path / "x.npz"
    np.savez(path, other=np.ones(3), **{name: array})
    data = bytearray(path.read_bytes())
    header = data.index(b"\x93NUMPY", data.index(name.encode() + b".npy"))
    data[header + 128] ^= 1 if name == "flags" else 64  # the first byte of the array
    path.write_bytes(data)
    for read in (streamer.load, lambda uri, **how: dict(streamer.stream(uri, order="file", **how))):
        with pytest.raises((FormatError, streamer.ChecksumError), match=r"(?i)crc-?32") as caught:
            read(path, framework="np")
        assert "x.npz" in str(caught.value)
    assert streamer.load(path, framework="np", names=["other"])["other"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_equal_those_of_numpy_load(tmp_path: Path, save: Callable[..., None]) -> None:
    path = tmp_path / "x.npz"
    save(path, **arrays())
    loaded = streamer.load(path, framework="np")
    with np.load(path) as expected:
        assert loaded.keys() == {*expected.files}
        for name in expected.files:
            assert np.array_equal(loaded[name], expected[name]), name
            assert (loaded[name].shape, loaded[name].dtype) == (
                expected[name].shape,
                expected[name].dtype.newbyteorder("="),
            )


def test_a_part_of_a_large_compressed_array_is_read(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 9, (4000, 2000)).astype("i2")
    np.savez_compressed(tmp_path / "x.npz", a=array)
    with streamer.open(tmp_path, framework="np") as checkpoint:
        assert np.array_equal(checkpoint["a"][3990:], array[3990:])
        assert np.array_equal(checkpoint["a"][1000:1010], array[1000:1010])
        assert np.array_equal(checkpoint["a"][...], array)


def test_an_archive_without_arrays_is_empty(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz")
    assert streamer.load(tmp_path / "x.npz") == {}


def archive(content: bytes, name: str = "a.npy", method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as file:
        file.writestr(name, content)
    return target.getvalue()


def member(header: str, data: bytes = bytes(16), *, length: int | None = None, version: int = 1) -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + (length or len(text)).to_bytes(2, "little") + text + data


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(4,)") -> bytes:
    return member(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")


def of_array(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=array)
    return buffer.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "Python objects": lambda: of_array(np.array([{}, []], dtype=object)),
    "texts": lambda: of_array(np.array(["a", "b"])),
    "structures": lambda: of_array(np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])),
    "long doubles": lambda: of_array(np.zeros(3, np.longdouble)),
    "dates": lambda: of_array(np.zeros(3, "M8[s]")),
    "no array": lambda: archive(b"text", "readme.txt"),
    "a file with another name": lambda: archive(described(), "code.py"),
    "another magic": lambda: archive(b"\x93NUMPX" + described()[6:]),
    "version 4": lambda: archive(described()[:6] + b"\4" + described()[7:]),
    "a header of gigabytes": lambda: archive(member("{}", length=65535)),
    "a header that is code": lambda: archive(member("__import__('os').system('true')")),
    "a header nested a thousand times": lambda: archive(member("(" * 1000 + ")" * 1000)),
    "a header that is no dict": lambda: archive(member("[1, 2]")),
    "a header with other keys": lambda: archive(member("{'descr': '<f4', 'shape': (4,)}")),
    "an empty member": lambda: archive(b""),
    "a header that is cut short": lambda: archive(described()[:30]),
    "more data than the shape": lambda: archive(described() + b"\0"),
    "less data than the shape": lambda: archive(described(shape="(5,)")),
    "a negative dimension": lambda: archive(described(shape="(-4,)")),
    "a dimension of exabytes": lambda: archive(described(shape="(4611686018427387904,)")),
    "a dimension that is a text": lambda: archive(described(shape="('4',)")),
    "a dimension that is true": lambda: archive(described(shape="(True, 4)")),
    "a shape that is a list": lambda: archive(described(shape="[4]")),
    "an order that is a number": lambda: archive(described(order="1")),
    "a dtype that is a number": lambda: archive(described(descr="4")),
    "a dtype that is empty": lambda: archive(described(descr="''")),
    "a hundred dimensions": lambda: archive(described(shape=f"({'1, ' * 99}4)")),
}


@each_row("what", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "x.npz").write_bytes(HOSTILE[what]())
    with pytest.raises((FormatError, TruncatedError)) as caught, warnings.catch_warnings():
        streamer.open(tmp_path)
    assert "x.npz" in str(caught.value)


def test_the_archive_of_these_tests_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(archive(described()))
    assert np.array_equal(streamer.load(tmp_path, framework="np")["a"], np.zeros(4, "f4"))


def test_an_array_in_fortran_order_that_is_damaged_on_the_way_is_read_again() -> None:
    """It is promised for all bytes that are compared; here, the first mismatch was an error."""
    damaged = [b"abd", b"abc"]

    class Once:
        size_bytes = 3

        def read_into(self, buffer: memoryview, offset: int) -> None:
            buffer[:] = damaged.pop(0)

    buffer = bytearray(3)
    Checked(Once(), 0, 3, crc=zlib.crc32(b"abc"), name="a").read_into(memoryview(buffer), 0)
    assert (bytes(buffer), damaged) == (b"abc", [])
