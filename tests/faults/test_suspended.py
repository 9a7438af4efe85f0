"""A process that was suspended in the middle of a load goes on, although every limit of a request passed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

from servers.one_file import is_block, one_file, place_of

SUSPENDED_S = 4.0  # longer than each limit, and than the time without a look at the clock that it calls a suspension
LIMITS = {
    f"STREAMER_{name}": "3"
    for name in ("BLOCK_DEADLINE_S", "FIRST_BYTE_TIMEOUT_S", "STALL_TIMEOUT_S", "CONNECT_TIMEOUT_S")
}
CASES = [
    ("load", "s3", "answers"),
    ("load", "az", "closes"),
    ("load", "http", "answers"),
    ("load", "gs", "closes"),
    ("pull", "http", "closes"),  # the last, and the only one: its signal handlers are for the main thread
]
# Everything is read once before, because a client that is still imported while others wait would let their limits pass.
READ = """
import json, sys, tempfile, streamer
from concurrent.futures import ThreadPoolExecutor
from streamer._cli import main

def read(case):
    verb, uri, options = case
    if verb == "load":
        return len(streamer.load(uri, storage_options=options))
    target = tempfile.mkdtemp(dir=sys.argv[2])
    main(["pull", uri, target, "--quiet", "--storage-options", json.dumps(options)], standalone_mode=False)
    return len(streamer.load(target))

def outcome(case):
    try:
        return read(case)
    except Exception as error:
        return str(error)

cases = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(cases)) as pool:
    for _ in range(2):
        loads = pool.map(outcome, cases[:-1])
        pulled = outcome(cases[-1])
        print(json.dumps([*loads, pulled]), flush=True)
        sys.stdin.readline()
"""


class Held:
    """Holds the answer to the first block that is asked for after all cases were read once."""

    def __init__(self, how: str, is_warm: threading.Event, goes_on: threading.Event) -> None:
        self.how, self.is_warm, self.goes_on = how, is_warm, goes_on
        self.has_asked, self._lock = threading.Event(), threading.Lock()

    def __call__(self, request, answer):
        with self._lock:
            is_first = (
                self.is_warm.is_set()
                and not self.has_asked.is_set()
                and answer.handler.command == "GET"
                and is_block(request)
            )
            if is_first:
                self.has_asked.set()
        if is_first:
            self.goes_on.wait(60)
            if self.how == "closes":
                answer.sent_bytes = 0


def test_a_suspended_load_goes_on_regression(tmp_path):
    """One process reads all cases at the same time, and is suspended when each of them waits for an answer."""
    is_warm, goes_on = threading.Event(), threading.Event()
    held = [Held(how, is_warm, goes_on) for _, _, how in CASES]
    with ExitStack() as stack:
        places = [
            (verb, *place_of(storage, stack.enter_context(one_file(script))))
            for (verb, storage, _), script in zip(CASES, held, strict=True)
        ]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", READ, json.dumps(places), str(tmp_path)],
                env={**os.environ, **LIMITS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert json.loads(process.stdout.readline()) == [2] * len(CASES)
        is_warm.set()
        process.stdin.write("\n")
        process.stdin.flush()
        for each in held:
            assert each.has_asked.wait(60)
        process.send_signal(signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        goes_on.set()
        process.send_signal(signal.SIGCONT)
        assert json.loads(process.stdout.readline()) == [2] * len(CASES)
