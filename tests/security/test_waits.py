"""Every wait for somebody else ends when it should, whatever he does."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from servers.background import begun
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer.core.checkpoint.shards import Shards
from streamer.core.checkpoint.verification import ByStore
from streamer.core.options.settings import resolve
from streamer.core.store.sources import ObjectInfo

LIMIT_S = 1.5  # a second, and what a busy machine takes to wake a thread


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
