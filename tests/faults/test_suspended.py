"""A process that was suspended in the middle of a load goes on, although every limit of a request passed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from servers.one_file import is_block, one_file, place_of

SUSPENDED_S = 4.0  # longer than each limit, and than the time without a look at the clock that it calls a suspension
LIMITS = {
    f"STREAMER_{name}": "3"
    for name in ("BLOCK_DEADLINE_S", "FIRST_BYTE_TIMEOUT_S", "STALL_TIMEOUT_S", "CONNECT_TIMEOUT_S")
}
LOAD = "import json, sys, streamer; print(len(streamer.load(sys.argv[1], storage_options=json.loads(sys.argv[2]))))"


def outcome_of(storage: str, how: str) -> str:
    """Suspend a load from a storage while it waits for an answer; return its output."""
    has_asked, goes_on, lock = threading.Event(), threading.Event(), threading.Lock()

    def script(request, answer):
        is_read = answer.handler.command == "GET"
        with lock:
            is_first = is_read and is_block(request) and not has_asked.is_set()
            if is_first:
                has_asked.set()
        if is_first:
            goes_on.wait(60)
            if how == "closes":
                answer.sent_bytes = 0

    with one_file(script) as server:
        uri, options = place_of(storage, server)
        process = subprocess.Popen(
            [sys.executable, "-c", LOAD, uri, json.dumps(options)],
            env={**os.environ, **LIMITS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert has_asked.wait(60), process.communicate(timeout=5)[0]
            process.send_signal(signal.SIGSTOP)
            time.sleep(SUSPENDED_S)
            goes_on.set()
            process.send_signal(signal.SIGCONT)
            return process.communicate(timeout=60)[0].strip()
        finally:
            process.kill()
            process.wait()


def test_a_suspended_load_goes_on_regression():
    """All cases at the same time: a suspended process needs no processor."""
    cases = [("s3", "answers"), ("az", "closes"), ("http", "answers"), ("gs", "closes")]
    with ThreadPoolExecutor(len(cases)) as pool:
        outcomes = dict(zip(cases, pool.map(lambda case: outcome_of(*case), cases), strict=True))
    assert outcomes == dict.fromkeys(cases, "2")
