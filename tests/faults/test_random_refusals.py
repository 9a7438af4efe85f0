"""A server fails half of all requests at random, for example because one of the two servers behind its address is sick.

The load then sends each request twice on average, and does not stop all requests for that.
"""

from __future__ import annotations

import random
import re
import threading

import numpy as np
import pytest
from safetensors.numpy import save
from servers.one_file import FILES, one_file
from servers.scripted_http import Answer, Request, ScriptedServer

import streamer
from streamer import Options

pytestmark = pytest.mark.server

SHARDS = 12
OPTIONS = Options(deadline_s=100, block_bytes=64 << 10, hedge_percent=0)


def body_of(number: int) -> bytes:
    return save({f"weight {number:03}": np.full(60_000, number, dtype=np.float32)})


BODIES = [body_of(number) for number in range(SHARDS)]


class Half:
    """Fails every second request on average, of lookups and of blocks."""

    def __init__(self, failure: str) -> None:
        self.failure = failure
        self.random = random.Random(7)
        self.guard = threading.Lock()
        self.served = self.failed = 0

    def __call__(self, request: Request, answer: Answer) -> None:
        with self.guard:
            fails = self.random.random() < 0.5
            self.failed += fails
            self.served += not fails
        shard = re.search(r"shard-(\d+)\.safetensors", request.path)
        is_file = "Content-Range" in answer.headers or answer.body == BODIES[0]
        if shard is not None and is_file:
            answer.body = BODIES[int(shard[1])][request.begin : request.end]
        if fails and self.failure == "reset":
            answer.send = dropped
        elif fails:
            answer.become(int(self.failure))


def dropped() -> None:
    raise ConnectionResetError("by the test")


def half_failing(failure: str) -> tuple[ScriptedServer, Half]:
    script = Half(failure)
    return one_file(script, BODIES[0]), script


@pytest.mark.parametrize(
    ("storage", "failure"), [*((storage, "503") for storage in FILES), ("http", "429"), ("http", "reset")]
)
def test_half_of_all_requests_that_fail_cost_one_more_each(storage: str, failure: str) -> None:
    server, script = half_failing(failure)
    with server:
        place, options = FILES[storage](server.url.removesuffix("/object"))
        uris = [place.replace("a.safetensors", f"shard-{number:03}.safetensors") for number in range(SHARDS)]
        with streamer.stream(uris, framework="np", storage_options=options, options=OPTIONS, progress=False) as tensors:
            loaded = dict(tensors)
    assert len(loaded) == SHARDS
    assert all((loaded[f"weight {number:03}"] == number).all() for number in range(SHARDS))
    assert script.served >= 3 * SHARDS
    assert script.failed <= 2 * script.served  # half of all on average
    assert script.served <= 7 * SHARDS  # a lookup, the header and four blocks each; once more for a redirect
