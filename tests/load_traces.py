"""Traces of loads that no load wrote: as many events as a test wants, with the texts that it wants."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

NASTY = "</script><script>document.title='broken'</script>\"'\\\n\u2028é日本\U0001f600<!--"
ABOUT: dict[str, Any] = {
    "product": "streamer",
    "version": "0.1.0",
    "uri": "s3://bucket/llama",
    "bytes": 8_000_000,
    "seconds": 2.0,
    "bound_by": [{"what": "store", "share": 0.71}, {"what": "consumer", "share": 0.2}],
    "dropped_events": 0,
    "advice": "more requests in flight: http_in_flight=32",
}


def event(name: str, cat: str, begin_us: float, us: float, tid: int, pid: int = 1, **args: Any) -> dict[str, Any]:
    """Return a complete event."""
    return {"ph": "X", "name": name, "cat": cat, "ts": begin_us, "dur": us, "pid": pid, "tid": tid, "args": args}


def named(tid: int, name: str) -> dict[str, Any]:
    """Return the name of a thread."""
    return {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}


def request(begin_us: int, us: int, tid: int, name: str = "model-1.safetensors", **args: Any) -> dict[str, Any]:
    """Return a request, three quarters of which wait for its first byte."""
    phases = {"dns": 0, "connect": 0, "tls": 0, "first_byte": 3 * us // 4, "transfer": us - 3 * us // 4}
    usual = {"object": name, "offset": begin_us, "bytes": 64_000, "attempt": 1, "status": 206}
    return event(name, "request", begin_us, us, tid, **{**usual, **phases, **args})


def trace(events: int = 200, lanes: int = 8, name: str = "model-1.safetensors", **about: Any) -> dict[str, Any]:
    """Return a trace of two seconds: requests, checks, and a consumer that waits for them."""
    draw = random.Random(7)
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 0"}},
        *(named(tid, f"requests {tid}") for tid in range(lanes)),
        named(100, f"consumer {name}"),
        {"ph": "i", "name": "outage", "ts": 900_000, "pid": 1, "tid": 0, "args": {"server": name}},
        {"ph": "i", "name": "retry", "ts": 910_000, "pid": 1, "tid": 1, "args": {"status": 503}},
    ]
    each_us = 2_000_000 * lanes // events
    for number in range(events):
        begin, lane = each_us * (number // lanes), number % lanes
        us = draw.randint(each_us // 4, each_us * 3 // 4)
        found.append(request(begin, us, lane, name, **({"attempt": 3, "status": 503} if number == events // 2 else {})))
        if number % 4 == 0:
            found.append(event("crc", "verify", begin + us, each_us // 8, lane, bytes=64_000))
    for number in range(20):
        found.append(event("tensor", "wait", number * 100_000, 70_000, 100, **{"for": "store"}))
        found.append(event(name, "consumer", number * 100_000 + 70_000, 20_000, 100))
    return {"traceEvents": found, "otherData": {**ABOUT, **about}}


def write(path: Path, content: dict[str, Any]) -> Path:
    """Write a trace to a file."""
    path.write_text(json.dumps(content))
    return path
