"""The engine reads the entries that the strict reader reads, and leaves the others to it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
from each_row import each_row

from streamer.core.errors import FormatError
from streamer.core.format.header import Header, parse_header
from streamer.core.format.header_entries import _DocumentReader

ENTRIES = 3000
MIDDLE = 1500


def member(index: int, *, name: str | None = None, dtype: str = "BF16", shape: str = "2,4", offsets: str = "") -> str:
    name = f"layers.{index // 100}.weight_{index % 100}" if name is None else name
    return f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{offsets or bounds(index)}]}}'


def bounds(index: int) -> str:
    return f"{16 * index},{16 * index + 16}"


def put(text: str) -> Callable[[list[str]], None]:
    def change(members: list[str]) -> None:
        members[MIDDLE] = text

    return change


def swap(members: list[str]) -> None:
    members[MIDDLE], members[MIDDLE + 700] = members[MIDDLE + 700], members[MIDDLE]


def insert(text: str) -> Callable[[list[str]], None]:
    return lambda members: members.insert(MIDDLE, text)


def space_out(members: list[str]) -> None:
    members[:] = [each.replace(":", ": ").replace(",", ", ") for each in members]


def outcome(members: list[str]) -> Any:
    text = ("{" + ",".join(members) + "}").encode()
    try:
        return parse_header(pack("<Q", len(text)) + text, 8 + len(text) + 16 * ENTRIES, uri="x")
    except FormatError as error:
        return type(error), str(error)


RIGHT = {
    "nothing": lambda members: None,
    "metadata_first": lambda members: members.insert(0, '"__metadata__":{"format":"pt"}'),
    "metadata_in_the_middle": insert('"__metadata__":{"format":"pt"}'),
    "spaces_in_one": put(member(MIDDLE).replace(":", ": ")),
    "spaces_in_all": space_out,
    "another_order_of_fields": put(f'"a":{{"shape":[2,4],"data_offsets":[{bounds(MIDDLE)}],"dtype":"BF16"}}'),
    "an_unknown_field": put(member(MIDDLE)[:-1] + ',"more":{"a":[1]}}'),
    "an_escape": put(member(MIDDLE, name="a\\u0062")),
    "a_quote_in_a_name": put(member(MIDDLE, name='a\\"},\\"')),
    "what_ends_an_entry_in_a_name": put(member(MIDDLE, name="a},")),
    "a_name_of_no_letters": put(member(MIDDLE, name="")),
    "letters_of_elsewhere": put(member(MIDDLE, name="wéight\u200b重")),
    "a_long_name": put(member(MIDDLE, name="a" * 100_000)),
    "another_shape": put(member(MIDDLE, dtype="U8", shape="16")),
    "a_scalar_and_its_neighbour": put(
        member(MIDDLE, name="a", dtype="I64", shape="", offsets=f"{16 * MIDDLE},{16 * MIDDLE + 8}")
        + ","
        + member(MIDDLE, name="b", dtype="I64", shape="", offsets=f"{16 * MIDDLE + 8},{16 * MIDDLE + 16}")
    ),
    "an_empty_tensor": insert(member(0, name="empty", shape="0,4", offsets=f"{16 * MIDDLE},{16 * MIDDLE}")),
    "two_out_of_order": swap,
}

WRONG = {
    "another_dtype": put(member(MIDDLE, dtype="BF17")),
    "another_size": put(member(MIDDLE, shape="2,5")),
    "a_leading_zero_in_an_offset": put(member(MIDDLE, offsets="0" + bounds(MIDDLE))),
    "a_leading_zero_in_a_shape": put(member(MIDDLE, shape="02,4")),
    "a_sign": put(member(MIDDLE, offsets="+" + bounds(MIDDLE))),
    "an_underscore": put(member(MIDDLE, offsets="2_4000,24016")),
    "digits_of_elsewhere": put(member(MIDDLE, offsets="\uff124000,24016")),
    "a_digit_of_elsewhere_in_a_shape": put(member(MIDDLE, shape="\uff12,4")),
    "a_trailing_comma_in_a_shape": put(member(MIDDLE, shape="2,4,")),
    "a_float": put(member(MIDDLE, offsets="24000.0,24016")),
    "a_control_character": put(member(MIDDLE, name="a\nb")),
    "a_lone_surrogate": put(member(MIDDLE, name="\\ud800")),
    "a_name_twice": put(member(MIDDLE, name="layers.0.weight_0")),
    "metadata_like_a_tensor": put(member(MIDDLE, name="__metadata__")),
    "metadata_twice": insert('"__metadata__":{},"__metadata__":{}'),
    "a_hole": put(member(MIDDLE, dtype="U8", shape="15", offsets=f"{16 * MIDDLE},{16 * MIDDLE + 15}")),
    "an_overlap": put(member(MIDDLE, offsets=bounds(MIDDLE - 1))),
    "two_commas": put(member(MIDDLE) + ","),
    "a_name_without_end": put(member(MIDDLE)[:3]),
    "a_shape_beyond_64_bits": put(member(MIDDLE, shape="18446744073709551616,0")),
    "bytes_beyond_64_bits": insert(member(0, name="huge", dtype="U8", shape="18446744073709551000", offsets="0,1")),
}


@each_row("change", [*RIGHT.values(), *WRONG.values()])
def test_both_readers_end_the_same(change: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch) -> None:
    members = [member(index) for index in range(ENTRIES)]
    change(members)
    found = outcome(members)
    monkeypatch.setattr(_DocumentReader, "_read_plain_entries", lambda self, position: position)
    assert found == outcome(members)
    assert isinstance(found, Header) == (change not in WRONG.values())


@pytest.mark.parametrize("name", ["a", "w\u00e9ight", "\u91cd", "\U0001f600"])
def test_the_engine_reads_all_plain_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With names of each width that Python's strings have."""
    members = [member(index) for index in range(ENTRIES)]
    members[MIDDLE] = member(MIDDLE, name=name).replace(":", ": ")
    read: list[int] = []
    by_engine = _DocumentReader._read_plain_entries

    def counted(reader: _DocumentReader, position: int) -> int:
        before = len(reader._rows)
        end = by_engine(reader, position)
        read.append(len(reader._rows) - before)
        return end

    monkeypatch.setattr(_DocumentReader, "_read_plain_entries", counted)
    found = outcome(['"__metadata__":{"format":"pt"}', *members])
    assert found.entries[MIDDLE].name == name
    assert sum(read) == ENTRIES


def test_rows_are_not_scanned_by_the_garbage_collector() -> None:
    """A million new tuples would be scanned again and again."""
    rows = outcome([member(index) for index in range(ENTRIES)]).entries.rows
    assert not any(gc.is_tracked(row) or gc.is_tracked(row[2]) for row in rows)


def test_equal_values_of_rows_are_one_object() -> None:
    """A number, a dtype or a shape takes more memory than its text."""
    rows = outcome([member(index) for index in range(ENTRIES)]).entries.rows
    assert all(row[1] is rows[0][1] and row[2] is rows[0][2] for row in rows)
    assert all(row[3] is before[4] for before, row in pairwise(rows))
