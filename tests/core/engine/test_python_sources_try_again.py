"""A Python source whose file system says "try again" is asked again, as a server is over HTTP."""

from __future__ import annotations

import os
import time

import pytest

from streamer import Options
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import PythonSource

MIB = 1 << 20
DATA = os.urandom(8 * MIB)


def read(uri, read_into, confirm=None, **options):
    """Read eight items; `uri` names the server, whose outages the process remembers, so that each test has its own."""
    items = [Item(0, begin, begin + MIB) for begin in range(0, len(DATA), MIB)]
    session = ReadSession(
        [SourceObject(uri, PythonSource(read_into, confirm=confirm), len(DATA))],
        plan_reads(items, 0),
        resolve(Options(block_bytes=MIB, python_threads=4, **options)),
    )
    parts = {}
    try:
        while items := session.next_items():
            parts.update({item: bytes(memoryview(session.take(item))) for item in items})
        return b"".join(parts[item] for item in sorted(parts)), session.stats()
    finally:
        session.close()


class Storage:
    """Gives `DATA`, except where `fails` raises."""

    def __init__(self, fails):
        self.calls = 0
        self._fails = fails

    def read_into(self, buffer, offset):
        number, self.calls = self.calls, self.calls + 1
        self._fails(number)
        buffer[:] = DATA[offset : offset + len(buffer)]
        return len(buffer)


def test_a_failure_that_passes_costs_one_more_call():
    def fails(number):
        if number == 3:
            raise ConnectionResetError

    storage = Storage(fails)
    data, stats = read("passing://store/object", storage.read_into)
    assert data == DATA
    assert (storage.calls, stats["retries"]) == (9, 1)


def test_one_thread_at_a_time_probes_an_unreachable_storage():
    away_until = []

    def fails(number):
        if number == 2:
            away_until.append(time.monotonic() + 1)
        if away_until and time.monotonic() < away_until[0]:
            raise errors.HttpStatusError("busy", status=503)

    storage = Storage(fails)
    data, stats = read("away://store/object", storage.read_into)
    assert data == DATA
    assert stats["outages"] >= 1
    assert stats["waited_us"] > 500_000
    # Until the engine knows of the first failure, each of the four threads may fail with its call and the next.
    assert storage.calls <= 8 + 2 * 4 + stats["probes"]


def test_an_unreachable_storage_ends_the_load_with_its_error_and_its_history():
    def fails(number):
        if number > 2:
            raise errors.ConnectError("no connection to the storage", uri="gone://store/object")

    with pytest.raises(errors.ConnectError, match="gone://store has been failing for") as caught:
        read("gone://store/object", Storage(fails).read_into, block_deadline_s=0.5)
    assert caught.value.message.startswith("no connection to the storage; ")
    assert 0.4 < caught.value.elapsed_s < 30


def test_a_failure_that_will_not_pass_is_final_at_once():
    def fails(number):
        raise FileNotFoundError(2, "gone")

    storage = Storage(fails)
    with pytest.raises(errors.StorageError):
        read("final://store/object", storage.read_into)
    assert storage.calls <= 4  # one for each thread


def test_a_confirmation_that_fails_for_a_moment_is_requested_again():
    confirmed = []

    def confirm():
        confirmed.append(None)
        if len(confirmed) == 1:
            raise TimeoutError

    data, stats = read("confirmed://store/object", Storage(lambda number: None).read_into, confirm)
    assert data == DATA
    assert len(confirmed) == 2
    assert stats["retries"] == 1
