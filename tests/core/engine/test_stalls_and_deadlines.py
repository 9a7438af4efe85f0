"""No block starves in silence: a transfer that is too slow is made anew, and the time of a block is watched."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import save_file
from servers.raw_tcp import FullQueue
from servers.scripted_http import ScriptedServer

import streamer
from streamer import Options
from streamer.core import errors
from streamer.core.checkpoint import catalog
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.format.header import parse_header
from streamer.core.options.limits import Deadline
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

DATA = os.urandom(256 << 10)
KIB = 1 << 10


def read(url, **options):
    plan = plan_reads([Item(0, 0, len(DATA))], 0)
    session = ReadSession(
        [SourceObject("test://object", HttpSource(url), len(DATA))], plan, resolve(Options(**options))
    )
    try:
        assert session.next_items() == [0]
        return bytes(memoryview(session.take(0))), session.stats()
    finally:
        session.close()


def trickling(step_bytes, pause_s, applies):
    """A script that sends bodies in small steps, to requests whose number `applies` says."""

    def script(request, answer):
        if not applies(request.number):
            return
        write = answer.handler.wfile.write

        def write_slowly(data):
            if data[:9] == b"HTTP/1.1 ":
                return write(data)
            for begin in range(0, len(data), step_bytes):
                write(data[begin : begin + step_bytes])
                time.sleep(pause_s)
            return len(data)

        answer.handler.wfile.write = write_slowly

    return script


def test_a_trickling_connection_is_replaced_and_the_read_continues_regression():
    """1.3 KB/s counted as alive, as long as it was above 1 KiB/s."""
    with ScriptedServer(DATA, trickling(650, 0.5, lambda number: number == 0)) as server:
        data, stats = read(server.url, stall_timeout_s=1, hedge_percent=0)
    assert data == DATA
    assert stats["retries"] == 1
    first, second = server.requests
    assert (first.begin, second.end) == (0, len(DATA))
    assert second.begin > 0


def test_the_speed_that_counts_as_a_stall_is_an_option():
    with ScriptedServer(DATA, trickling(16 * KIB, 0.1, lambda number: True)) as server:
        data, stats = read(server.url, stall_timeout_s=0.5, stall_bytes_per_s=KIB, hedge_percent=0)
    assert data == DATA
    assert stats["retries"] == 0


def test_a_slow_line_that_all_requests_share_is_no_stall():
    """Eight requests at 100 KiB/s each bring what one must: it is the line that is slow."""
    with ScriptedServer(DATA, trickling(10 * KIB, 0.1, lambda number: True)) as server:
        options = {"http_reactors": 1, "http_in_flight": 8, "block_bytes": 64 * KIB, "hedge_percent": 0}
        data, stats = read(server.url, stall_timeout_s=0.4, stall_bytes_per_s=256 * KIB, **options)
    assert data == DATA
    assert stats["retries"] == 0


def test_the_time_of_a_block_is_watched_while_an_attempt_runs_regression():
    with (
        ScriptedServer(DATA, trickling(4 * KIB, 0.1, lambda number: True)) as server,
        pytest.raises(errors.TransferTimeoutError, match="block_deadline_s"),  # all bytes would come in six seconds
    ):
        read(server.url, block_deadline_s=1, stall_bytes_per_s=1, hedge_percent=0)
    assert len(server.requests) == 1


def test_a_probe_that_meets_a_silent_server_is_soon_followed_by_another():
    """Behind one address may be several servers, of which one is silent: it would be waited for 30 s."""
    over = threading.Event()

    def script(request, answer):
        if request.number == 0:
            return  # so that it has answered
        if request.number <= 3:
            answer.become(503)
        elif request.number == 4:
            over.wait(60)

    with ScriptedServer(DATA, script) as server:
        started = time.monotonic()
        data, stats = read(server.url, block_bytes=64 * KIB, http_reactors=1, http_in_flight=1, hedge_percent=0)
        assert time.monotonic() - started < 40
        over.set()
    assert data == DATA
    assert stats["outages"] >= 1


def test_a_host_that_takes_no_connection_is_asked_again_after_the_connect_timeout():
    queue = FullQueue()
    try:
        with pytest.raises(errors.StorageError) as caught:
            read(f"http://127.0.0.1:{queue.port}/x", connect_timeout_s=0.3, max_attempts=2, block_deadline_s=20)
    finally:
        queue.close()
    assert caught.value.attempts == 2  # else the first waits for the deadline


def test_a_consumer_that_is_slow_is_ended_by_the_deadline_regression(tmp_path, monkeypatch):
    """It counted only while the engine was waited for: tensors that were ready were handed out for ever."""
    save_file({f"t{number}": np.zeros(10) for number in range(50)}, tmp_path / "model.safetensors")
    with streamer.stream(tmp_path, framework="np", options=Options(deadline_s=60)) as tensors:
        next(tensors)
        monkeypatch.setattr(Deadline, "is_over", property(lambda _: True))  # without waiting for it
        with pytest.raises(errors.TransferTimeoutError, match=r"49 of 50 tensors were not there in time.*deadline_s"):
            next(tensors)


def test_headers_that_take_long_to_parse_keep_the_deadline_regression(tmp_path, monkeypatch):
    """Those of 90 MB took seconds each, with any deadline."""
    for name in ("a", "b"):
        save_file({f"tensor.{name}": np.zeros(1, dtype=np.uint8)}, tmp_path / f"{name}.safetensors")
    parsed = []

    def slow(*arguments, **options):
        parsed.append(options["uri"])
        end = time.monotonic() + 0.5
        while time.monotonic() <= end:
            time.sleep(0.05)
        return parse_header(*arguments, **options)

    monkeypatch.setattr(catalog, "parse_header", slow)
    with pytest.raises(errors.TransferTimeoutError, match=r"1 of 2 headers.*deadline_s"):
        streamer.load(str(tmp_path), options=Options(deadline_s=0.5))
    assert len(parsed) == 1
