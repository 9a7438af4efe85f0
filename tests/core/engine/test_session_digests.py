"""Digests of a session's items, read through Python: a wrong item is read again, and its source confirms it again."""

from __future__ import annotations

import threading

import pytest
from each_row import each_row

from streamer import _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import ChecksumError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.store.sources import PythonSource

BLOCK_BYTES = 64 << 10
DATA = bytes(range(251)) * 2000
ITEMS = [(begin, min(begin + 150_000, len(DATA))) for begin in range(0, len(DATA), 150_000)]


class Flipping:
    """A source that flips a bit at an offset the first `times` times it is read, and notes what is asked of it."""

    def __init__(self, at: int, times: int) -> None:
        self._at, self._left = at, times
        self._lock = threading.Lock()
        self.read_bytes = 0
        self.confirmed_at: list[int] = []

    def read_into(self, buffer: memoryview, offset: int) -> int:
        buffer[:] = DATA[offset : offset + len(buffer)]
        with self._lock:
            self.read_bytes += len(buffer)
            if offset <= self._at < offset + len(buffer) and self._left > 0:
                self._left -= 1
                buffer[self._at - offset] ^= 1
        return len(buffer)

    def confirm(self) -> None:
        with self._lock:
            self.confirmed_at.append(self.read_bytes)


def read(source: Flipping, **options: int) -> tuple[list[bytes], ReadSession]:
    known = SourceObject("test://object", PythonSource(source.read_into, confirm=source.confirm), len(DATA))
    plan = plan_reads([Item(0, begin, end) for begin, end in ITEMS], 0)
    digests = _native.DigestPlan()
    for begin, end in ITEMS:
        digests.add_item(0, "crc32c", _native.crc("crc32c", DATA[begin:end]))
    settings = resolve(Options(block_bytes=BLOCK_BYTES, **options))
    session = ReadSession([known], plan, settings, digests=digests, name_of=lambda item: f"item {item}")
    found: list[bytes] = [b""] * len(ITEMS)
    try:
        while items := session.next_items():
            for item in items:
                memory = session.take(item)
                assert memory is not None
                found[item] = bytes(memoryview(memory))
    finally:
        session.close()
    return found, session


@each_row("threads", [1, 4])
@each_row("at", [0, 200_000, len(DATA) - 1])
def test_a_wrong_item_is_read_again_and_confirmed_again(at: int, threads: int) -> None:
    source = Flipping(at, times=1)
    found, session = read(source, python_threads=threads)
    assert b"".join(found) == DATA
    assert session.stats()["rereads"] == 1
    begin, end = next(item for item in ITEMS if item[0] <= at < item[1])
    assert source.read_bytes == len(DATA) + (end - begin)
    # Whoever reads last confirms after it: the first time all bytes were read once, and after each second reading.
    assert max(source.confirmed_at) == source.read_bytes


def test_a_right_item_is_read_once() -> None:
    source = Flipping(-1, times=0)
    found, session = read(source)
    assert b"".join(found) == DATA
    assert source.confirmed_at == [len(DATA)]
    assert session.stats()["rereads"] == 0


def test_an_item_that_stays_wrong_ends_the_session() -> None:
    with pytest.raises(ChecksumError, match="'item 1'") as caught:
        read(Flipping(200_000, times=9))
    assert caught.value.tensor == "item 1"


def test_little_memory_is_enough() -> None:
    source = Flipping(200_000, times=1)
    found, _ = read(source, memory_limit_bytes=1)
    assert b"".join(found) == DATA
