"""A header or an index costs a few times its own size in memory, whatever it holds, accepted or refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from each_row import each_row

import streamer
from streamer.core.engine import plan
from streamer.core.errors import FormatError, HeaderError, ShardIndexError
from streamer.core.format.header import parse_header
from streamer.core.format.index import MAX_INDEX_BYTES, parse_index
from streamer.core.format.plain_pickle import read_plain
from streamer.core.other_formats.gguf import Gguf
from streamer.core.other_formats.interface import BytesFile

SIZE = 3_000_000  # large enough that what is not proportional does not count
MOST_TIMES = 10.0  # its size
MOST_TIMES_OF_PICKLE = 130.0  # one byte makes a dict; so 16 MiB are read of a pickle at most
MOST_TIMES_OF_GGUF = 40.0


def repeated(unit: str) -> str:
    return unit * (SIZE // len(unit))


def numbered(unit: str) -> str:
    """Join copies of it in which each ``%`` is the number of the copy."""
    fields = unit.count("%")
    return ",".join(unit % ((number,) * fields) for number in range(SIZE // len(unit)))


def wide(unit: str, count: int) -> str:
    """Join copies of it with names of one wide character each; `count` is where a dict or a set has just grown."""
    return ",".join(unit.replace("%", chr(0x10000 + number)) for number in range(count))


HEADERS = {
    "escapes": '{"__metadata__":{"k":"' + repeated("\\n") + '"}}',
    "escaped quotes": '{"__metadata__":{"k":"' + repeated('\\"') + '"}}',
    "escaped letters": '{"__metadata__":{"k":"' + repeated("\\u0041") + '"}}',
    "surrogate pairs": '{"__metadata__":{"k":"' + repeated("\\ud83d\\ude00") + '"}}',
    "wide characters": '{"__metadata__":{"k":"' + repeated("\U0001f600") + '"}}',
    "wide names": "{" + wide('"%":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', 21_847) + "}",
    "wide names in another form": "{"
    + wide('"%":{"dtype":"U8","x":"","shape":[0],"data_offsets":[0,0]}', 21_847)
    + "}",
    "a name of escapes": '{"' + repeated("\\t") + '":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "much metadata": '{"__metadata__":{' + numbered('"%x":""') + "}}",
    "entries": "{" + numbered('"%07x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}') + "}",
    "entries in another form": "{" + numbered('"%07x" : {"dtype":"U8","shape":[0],"data_offsets":[0,0]}') + "}",
    "shapes that differ": "{" + numbered('"%07x":{"dtype":"U8","shape":[0,%d],"data_offsets":[0,0]}') + "}",
    "many dimensions": "{"
    + numbered('"%07x":{"dtype":"U8","shape":[0,' + "300," * 62 + '%d],"data_offsets":[0,0]}')
    + "}",
    "many dimensions in another form": "{"
    + numbered('"%07x":{"shape":[0,' + "300," * 62 + '%d],"dtype":"U8","data_offsets":[0,0]}')
    + "}",
    "open brackets": '{"a":' + repeated("["),
    "empty lists": '{"a":[' + repeated("[],") + "[]]}",
    "small objects": '{"a":[' + repeated('{"":0},') + "0]}",
    "lists as metadata": '{"__metadata__":[' + repeated("[],") + "[]]}",
    "lists in metadata": '{"__metadata__":{"k":[' + repeated("[],") + "[]]}}",
    "an unknown field of lists": '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":['
    + repeated("[],")
    + "[]]}}",
    "a shape of millions": '{"a":{"dtype":"U8","shape":[' + repeated("0,") + '0],"data_offsets":[0,0]}}',
    "a string without end": '{"a":"' + repeated("a"),
}

INDEXES = {
    "entries": '{"weight_map":{' + numbered('"%06x":"model.safetensors"') + "}}",
    "shards that differ": '{"weight_map":{' + numbered('"%06x":"%06x.safetensors"') + "}}",
    "wide names": '{"weight_map":{' + wide('"%":"a.safetensors"', 87_383) + "}}",
    "wide names of the shortest shard": '{"weight_map":{' + wide('"%":".safetensors"', 87_383) + "}}",
    "escapes": '{"weight_map":{"' + repeated("\\n") + '":"model.safetensors"}}',
    "lists beside it": '{"x":[' + repeated("[],") + '[]],"weight_map":{"a":"model.safetensors"}}',
    "lists as metadata": '{"metadata":[' + repeated("[],") + '[]],"weight_map":{"a":"model.safetensors"}}',
    "lists inside it": '{"weight_map":{"a":[' + repeated("[],") + "[]]}}",
    "lists instead": "[" + repeated("[],") + "[]]",
}


def peak_of(parse, data: bytes) -> float:
    """Return the memory that reading took at its most, in sizes of what was read, which is one of them."""
    tracemalloc.start()
    try:
        parse()
    except FormatError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return 1 + peak / len(data)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_costs_ten_times_its_size_at_most_regression(kind: str) -> None:
    """Escapes took 44 times their size, and a malformed header 57 times."""
    text = HEADERS[kind].encode()
    data = len(text).to_bytes(8, "little") + text
    assert peak_of(lambda: parse_header(data, len(data), uri="test"), data) < MOST_TIMES


@each_row("kind", INDEXES)
def test_an_index_costs_ten_times_its_size_at_most(kind: str) -> None:
    data = INDEXES[kind].encode()
    assert peak_of(lambda: parse_index(data, uri="test"), data) < MOST_TIMES


def test_an_index_is_measured_before_it_is_read_regression(tmp_path: Path) -> None:
    """A sparse one of 3 GB was read whole."""
    index = tmp_path / "model.safetensors.index.json"
    with index.open("wb") as file:
        file.truncate(3_000_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ShardIndexError, match=f"3000000000 bytes, more than the {MAX_INDEX_BYTES} allowed"):
            streamer.load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_metadata_has_a_number_of_members_at_most() -> None:
    text = ('{"__metadata__":{' + ",".join(f'"{number}":""' for number in range(100_001)) + "}}").encode()
    data = len(text).to_bytes(8, "little") + text
    with pytest.raises(HeaderError, match="more than 100000 members"):
        parse_header(data, len(data), uri="test")


@each_row("size", [1000, 1020, 1024, 1025, 2000, 65_000])
def test_a_value_is_read_whole_wherever_the_window_ends(size: int) -> None:
    """The first window has 1024 characters: what it cuts is read in the next one."""
    for rest in range(30):
        text = f'{{"a":{{"dtype":"U8","x":"{"y" * (size - 60 + rest)}","shape":[1],"data_offsets":[0,1]}}}}'.encode()
        data = len(text).to_bytes(8, "little") + text
        header = parse_header(data, len(data) + 1, uri="test")
        assert header.entries[0].shape == (1,)


READS: dict[str, Callable[[Path], Any]] = {
    "load": streamer.load,
    "numpy": lambda path: streamer.load(path, framework="np"),
    "stream": lambda path: list(streamer.stream(path)),
    "tensor": lambda path: streamer.open(path).get_tensor("large"),
    "slice": lambda path: streamer.open(path).get_slice("large")[1:],
}


def sparse(path: Path, size: int) -> Path:
    """Write a shard whose large tensor is a hole in the file."""
    small = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    large = {"dtype": "U8", "shape": [size], "data_offsets": [8, 8 + size]}
    header = json.dumps({"small": small, "large": large}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 8 + size)
    return path


@pytest.mark.parametrize("way", READS)
def test_a_tensor_larger_than_all_memory_is_refused_before_it_is_read_regression(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system promised the memory, and ended the process when it was filled."""
    path = sparse(tmp_path / "a.safetensors", 4 << 20)
    monkeypatch.setattr(plan, "memory_bytes", lambda: 2 << 20)
    monkeypatch.setattr(plan, "swap_bytes", lambda: 1 << 20)
    with pytest.raises(
        streamer.OutOfMemoryError, match=r"tensor 'large' has .* bytes, .* use only 3145728 bytes"
    ) as caught:
        READS[way](path)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.requested_bytes == (4 << 20) - (way == "slice")
    assert caught.value.hint
    assert streamer.load(path, names="small")["small"].tolist() == [0] * 8


def test_memory_of_the_callers_own_is_no_matter_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sparse(tmp_path / "a.safetensors", 4 << 20)
    target = {"large": torch.ones(4 << 20, dtype=torch.uint8), "small": torch.ones(8, dtype=torch.uint8)}
    monkeypatch.setattr(plan, "memory_bytes", lambda: 1 << 20)
    monkeypatch.setattr(plan, "swap_bytes", lambda: 0)
    streamer.load_into(path, target)
    assert not target["large"].any()


PICKLES = {
    "lists": b"]",
    "dicts": b"}",
    "floats": b"G" + bytes(8),
    "texts": b"\x8c\x01a",
    "tuples": b"N\x85",
    "sets": b"\x8f",
}


@each_row("kind", PICKLES)
def test_a_pickle_costs_130_times_its_size_at_most(kind: str) -> None:
    data = b"\x80\x04" + PICKLES[kind] * (SIZE // len(PICKLES[kind]) // 3) + b"."
    assert peak_of(lambda: read_plain(data, {}, {}), data) < MOST_TIMES_OF_PICKLE


def test_an_index_of_gguf_costs_forty_times_its_size_at_most() -> None:
    counted = SIZE // 12
    array = struct.pack("<IQ", 9, counted) + struct.pack("<IQ", 4, 0) * counted  # of empty arrays
    data = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 9) + array
    assert peak_of(lambda: Gguf().read_index([BytesFile(data)]), data) < MOST_TIMES_OF_GGUF
