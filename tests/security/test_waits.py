"""Every wait for somebody else ends when it should, whatever he does."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from servers.background import begun
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer.core.options.settings import resolve
from streamer.core.shards.shards import Shards
from streamer.core.store.sources import ObjectInfo
from streamer.core.verification.by_store import ByStore

LIMIT_S = 8.0  # a tenth of a second on an idle machine; what is not given up waits for 20 s or more


@pytest.mark.parametrize("count", [2, 40])
def test_ctrl_c_does_not_wait_for_digests_regression(count: int) -> None:
    """Requests for digests ran in a pool whose end waits for all of them: 90 s with a silent server."""
    answered = threading.Event()
    store = SimpleNamespace(digest=lambda info: answered.wait(20))
    infos = [ObjectInfo(f"b/{number}", f"s3://b/{number}", 10) for number in range(count)]
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where run in the background
    try:
        began = time.monotonic()
        interrupt = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        with pytest.raises(KeyboardInterrupt), begun(interrupt):
            ByStore().expected_of(store, [Shards("s3://b", [], None, infos)], resolve(None))
        assert time.monotonic() - began < LIMIT_S
    finally:
        answered.set()
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("what", ["the probe", "the bytes"])
@pytest.mark.parametrize("status", [429, 503])
def test_no_server_can_ask_for_more_patience_than_a_block_has_regression(status: int, what: str) -> None:
    """``Retry-After: 99999999999`` was waited for 120 s, whatever `block_deadline_s` said."""

    def script(request: Request, answer: Answer) -> None:
        if request.number > 0 and (what == "the probe" or request.end - request.begin > 1):
            answer.become(status, Retry_After="99999999999")

    with ScriptedServer(b"weights" * 1000, script) as server:
        began = time.monotonic()
        with pytest.raises(streamer.HttpStatusError, match="has been failing for"):
            streamer.load(server.url, options=streamer.Options(block_deadline_s=1.0))
        assert time.monotonic() - began < 3 + LIMIT_S  # what was asked last has three attempts of its own


# --- two threads on one stream: the second gets an error, and nothing of the first one's read is lost ---------------


def test_the_second_thread_that_reads_a_stream_is_refused_and_the_first_gets_everything(tmp_path: Path) -> None:
    expected = {name: torch.full((1000,), value) for name, value in (("a", 1.0), ("b", 2.0))}
    save_file(expected, tmp_path / "model.safetensors")
    is_reading, may_go_on = threading.Event(), threading.Event()

    def hold(_done: int, _total: int) -> None:
        is_reading.set()
        assert may_go_on.wait(60)

    stream = streamer.stream(tmp_path, progress=hold)
    with stream, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: dict(stream))
        try:
            assert is_reading.wait(60)
            with pytest.raises(streamer.UsageError, match="read by another thread"):
                next(stream)
        finally:
            may_go_on.set()
        loaded = first.result(60)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_progress_callback_that_reads_its_own_stream_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "model.safetensors")
    stream = streamer.stream(tmp_path, progress=lambda *_: next(stream))
    with stream, pytest.raises(streamer.UsageError, match="its own progress callback"):
        next(stream)


def test_a_stream_that_another_thread_closes_was_closed_and_is_not_broken_regression(tmp_path: Path) -> None:
    """It was reported as "delivered without its bytes", a fault of the engine."""
    save_file({f"t{number}": torch.zeros(10) for number in range(3000)}, tmp_path / "model.safetensors")
    with streamer.stream(tmp_path, progress=False) as stream:
        taken = stream._session.take_all

        def close_then_take(items: list[int]) -> object:
            if 100 in items:
                closing = threading.Thread(target=stream.close)
                closing.start()
                closing.join()
            return taken(items)

        stream._session.take_all = close_then_take
        with pytest.raises(streamer.LoadCancelledError):
            dict(stream)
