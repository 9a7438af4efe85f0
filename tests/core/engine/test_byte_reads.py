"""Ranges of files into new bytes and into the caller's memory, and files piece by piece."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from streamer.core.engine import byte_reads
from streamer.core.engine.byte_reads import ByteStream, read_bytes, read_into
from streamer.core.engine.session import SourceObject
from streamer.core.errors import ChangedError, TransferTimeoutError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource, PythonSource

SETTINGS = resolve(None)
CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture
def objects(tmp_path):
    made = []
    for name, content in (("a", CONTENT), ("b", CONTENT[::-1])):
        (tmp_path / name).write_bytes(content)
        made.append(SourceObject(name, FileSource(str(tmp_path / name)), len(content)))
    return made


@pytest.mark.parametrize("seed", range(8))
def test_ranges_in_any_order_that_overlap_and_repeat_are_read(objects, seed):
    numbers = random.Random(seed)
    ranges = []
    for _ in range(40):
        begin = numbers.randrange(len(CONTENT))
        ranges.append((numbers.randrange(2), begin, min(len(CONTENT), begin + numbers.choice([0, 1, 9, 5000, 90_000]))))
    ranges += numbers.choices(ranges, k=10)
    contents, _ = read_bytes(objects, ranges, SETTINGS)
    expected = [(CONTENT, CONTENT[::-1])[source][begin:end] for source, begin, end in ranges]
    assert contents == expected


def test_a_byte_that_ranges_share_is_read_once():
    asked = []

    def read(buffer, offset):
        asked.append((offset, buffer.nbytes))
        buffer[:] = CONTENT[offset : offset + buffer.nbytes]
        return buffer.nbytes

    source_object = SourceObject("a", PythonSource(read), len(CONTENT))
    ranges = [(0, 0, 100), (0, 50, 150), (0, 60, 70), (0, 200_000, 200_100)]
    contents, _ = read_bytes([source_object], ranges, replace(SETTINGS, coalesce_gap_bytes=0))
    assert contents == [CONTENT[begin:end] for _, begin, end in ranges]
    assert sum(size for _, size in asked) == 250


def test_empty_ranges_read_nothing():
    def read(buffer, offset):
        raise AssertionError

    source_object = SourceObject("a", PythonSource(read), 10)
    assert read_bytes([source_object], [(0, 4, 4)], SETTINGS)[0] == [b""]


def test_the_bytes_of_one_range_are_not_copied(objects, monkeypatch):
    made = []
    new_bytes = byte_reads._new_bytes
    monkeypatch.setattr(byte_reads, "_new_bytes", lambda *how: made.append(new_bytes(*how)) or made[-1])
    (content,), _ = read_bytes(objects, [(0, 10, 200_000)], SETTINGS)
    assert content is made[0]


def test_memory_of_the_caller_is_filled(objects):
    target = bytearray(1000)
    read_into(objects[0], 5000, memoryview(target), SETTINGS)
    assert target == CONTENT[5000:6000]


def test_a_later_read_requires_the_version_of_the_first(objects, tmp_path):
    pinned = read_into(objects[0], 0, memoryview(bytearray(10)), SETTINGS)
    (tmp_path / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(ChangedError):
        read_bytes([pinned], [(0, 0, 10)], SETTINGS)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(byte_reads, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(byte_reads, "AHEAD_BYTES", 40_000)


@pytest.mark.usefixtures("small_pieces")
def test_a_stream_gives_the_rest_of_a_file_in_order(objects):
    stream = ByteStream(objects[0], 12_345, SETTINGS)
    taken = b""
    for size in (1, 9_999, 10_000, 33_333, 1):
        target = bytearray(size)
        assert stream.read_into(memoryview(target)) == size
        taken += target
    stream.skip_to(stream.position + 45_678)
    skipped = len(taken) + 45_678
    assert stream.position == 12_345 + skipped
    rest = bytearray(len(CONTENT))
    count = stream.read_into(memoryview(rest))
    assert taken == CONTENT[12_345 : 12_345 + len(taken)]
    assert rest[:count] == CONTENT[12_345 + skipped :]
    assert stream.read_into(memoryview(rest)) == 0
    stream.close()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("in_order", [True, False])
def test_the_pieces_of_a_stream_are_all_of_it(objects, in_order):
    stream = ByteStream(objects[0], 0, SETTINGS, in_order=in_order)
    found = bytearray(len(CONTENT))
    for offset, piece in stream.pieces():
        found[offset : offset + piece.nbytes] = piece
    assert found == CONTENT
    stream.close()


@pytest.mark.usefixtures("small_pieces")
def test_what_is_read_ahead_of_a_slow_caller_is_bounded():
    asked = []

    def read(buffer, offset):
        asked.append(buffer.nbytes)
        return buffer.nbytes

    settings = resolve(Options(python_threads=1))
    stream = ByteStream(SourceObject("a", PythonSource(read), 1_000_000), 0, settings)
    stream.read_into(memoryview(bytearray(1)))
    stream.close()
    assert sum(asked) <= 60_000  # those in hand, and the piece taken


@pytest.mark.usefixtures("small_pieces")
def test_an_empty_file_is_a_stream_of_nothing(tmp_path):
    (tmp_path / "empty").touch()
    stream = ByteStream(SourceObject("empty", FileSource(str(tmp_path / "empty")), 0), 0, SETTINGS)
    assert list(stream.pieces()) == []
    stream.close()


@pytest.mark.usefixtures("small_pieces")
def test_the_deadline_of_a_load_does_not_end_a_stream_that_is_read_slowly(objects):
    hasty = replace(SETTINGS, deadline_s=1e-9, began=None)
    with pytest.raises(TransferTimeoutError):
        read_bytes(objects, [(0, 0, 10)], hasty)
    stream = ByteStream(objects[0], 0, hasty)
    assert stream.read_into(memoryview(bytearray(20_000))) == 20_000
    stream.close()
