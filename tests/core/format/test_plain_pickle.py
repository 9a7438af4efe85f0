"""A pickle is data: what it names is neither imported nor called, and nothing outside of the result changes."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import sys
import tracemalloc
from pathlib import Path, PurePosixPath

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

import streamer
from streamer.core.format.plain_pickle import Record, empty_dict, read_plain, same

PATH = {("pathlib", "PurePosixPath"), ("pathlib._local", "PurePosixPath")}
DICT = {("collections", "OrderedDict"): empty_dict}


class Malicious:
    """Runs something where it is unpickled as usual."""

    def __init__(self, called, *arguments):
        self.called, self.arguments = called, arguments

    def __reduce__(self):
        return self.called, self.arguments


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_and_listed_classes_are_read(protocol):
    value = {"a": (1, [2.5, None, True]), "b": collections.OrderedDict(c=b"3" * 300), "d": PurePosixPath("/e/f")}
    value["long"] = [1 << 40, -(1 << 3000), "ä" * 70_000, 1.5]
    found = read_plain(pickle.dumps(value, protocol), PATH, {**DICT, ("_codecs", "encode"): _Encode()})
    assert found["long"] == value["long"]
    assert (found["a"], found["b"]) == ((1, [2.5, None, True]), {"c": b"3" * 300})
    assert isinstance(found["d"], Record)
    assert found["d"].kind == "PurePosixPath"
    assert "/".join(found["d"].arguments).replace("//", "/") == "/e/f"


class _Encode:
    """How protocol 2 writes bytes."""

    def __call__(self, text, _):
        return text.encode("latin1")


@each_row("put", [b"r\xff\xff\xff\x07", b"p134217727\n", b"p+134_217_727\n", b"p 134217727\n"])
@each_row("before", [b"", b"\x8c\x03abc", b"X\x03\0\0\0rrr", b"K\x05", b"I5\n", b"\x95" + bytes(8)])
def test_few_bytes_take_little_memory(put, before):
    """Python's unpickler makes room for any position at once: here for a gigabyte."""
    tracemalloc.start()
    try:
        with pytest.raises(streamer.FormatError, match="gives position 134217727, and has"):
            read_plain(b"\x80\x04N" + before + put + b".", (), {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("counted", [b"T", b"B", b"X", b"\x8b"])
def test_a_length_beyond_the_end_is_refused(counted):
    with pytest.raises(streamer.FormatError, match="gives length 2147483647, and has"):
        read_plain(counted + b"\xff\xff\xff\x7f.", (), {})


def test_a_list_that_a_pickle_repeats_is_not_copied():
    """A list that is made a tuple many times would take the square of the pickle's size."""
    many = b"](" + b"K\x01" * 1000 + b"e\x94"
    copied = b"ctorch\nSize\n" + b"h\0\x85R"
    with pytest.raises(streamer.FormatError, match="malformed: TypeError"):
        read_plain(b"\x80\x04" + many + copied + b".", (), {("torch", "Size"): same(tuple)})


def test_a_call_is_not_made(tmp_path):
    proof = tmp_path / "proof"
    data = pickle.dumps({"weights": Malicious(os.mkdir, str(proof))})
    with pytest.raises(streamer.FormatError, match=r"names '(posix|os)\.mkdir', which does not belong there"):
        read_plain(data, PATH, DICT)
    assert not proof.exists()
    pickle.loads(data)
    assert proof.exists()  # the same bytes do run elsewhere


@pytest.mark.parametrize(
    "named", [b"cbuiltins\neval\n", b"cbuiltins\ngetattr\n", b"cos\nsystem\n", b"cpathlib\nPath.home\n", b"c\n\n"]
)
def test_a_name_alone_is_refused(named):
    with pytest.raises(streamer.FormatError):
        read_plain(named + b".", PATH, DICT)


def test_no_module_is_imported():
    before = set(sys.modules)
    with pytest.raises(streamer.FormatError):
        read_plain(b"cantigravity\nfly\n.", PATH, DICT)
    assert "antigravity" not in set(sys.modules) - before


def test_classes_cannot_be_changed():
    """BUILD sets attributes of whatever is on the stack, a class among them."""
    state = pickle.dumps((None, {"parts": "changed", "arguments": "changed"}), 2)[2:-1]
    for name in (b"cpathlib\nPurePosixPath\n", b"ccollections\nOrderedDict\n"):
        with pytest.raises(streamer.FormatError, match="malformed"):
            read_plain(name + state + b"b.", PATH, DICT)
    assert PurePosixPath.parts != "changed"
    assert read_plain(pickle.dumps(Path("b"), 2), {("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}, {})


def test_references_outwards_are_refused_unless_somebody_gives_them():
    class Referring(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", "key") if obj is Malicious else None

    data = io.BytesIO()
    Referring(data).dump([Malicious])
    with pytest.raises(streamer.FormatError, match="outside of it"):
        read_plain(data.getvalue(), (), {})
    assert read_plain(data.getvalue(), (), {}, lambda pid: pid[1]) == ["key"]


@pytest.mark.parametrize("data", [b"", b".", b"garbage", pickle.dumps([1, 2])[:-3], b"(" * 100_000 + b"."], ids=len)
def test_malformed_bytes_are_refused(data):
    with pytest.raises(streamer.FormatError, match="malformed"):
        read_plain(data, (), {})


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_format_error(data):
    with contextlib.suppress(streamer.FormatError):
        read_plain(data, PATH, DICT)
