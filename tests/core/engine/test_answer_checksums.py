"""Answers that carry a checksum are compared with it: a wrong one is asked for once more, then it is an error."""

from __future__ import annotations

import base64
import os
from collections import Counter
from typing import Any

import pytest
from servers.scripted_http import Answer, Request, Script, ScriptedServer

from streamer import _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import ChecksumError, RangeResponseError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.store.sources import AnswerChecksum, HttpSource

BLOCK_BYTES = 256 << 10
CHECKSUM = AnswerChecksum(("x-send-checksum", "yes"), "x-checksum", "crc64nvme", "little", BLOCK_BYTES)
DATA = os.urandom(4_000_000)


def described(request: Request, answer: Answer) -> None:
    """Add the checksum of the right bytes."""
    if request.headers.get("x-send-checksum") == "yes":
        value = _native.crc("crc64nvme", DATA[request.begin : request.end]).to_bytes(8, "little")
        answer.headers["X-Checksum"] = base64.b64encode(value).decode()


def flipped(answer: Answer, at: int = 1000) -> None:
    answer.body = answer.body[:at] + bytes([answer.body[at] ^ 4]) + answer.body[at + 1 :]


def read(server: ScriptedServer, *, compares: bool = True, **options: Any) -> tuple[bytes, ReadSession]:
    source = HttpSource(server.url, answer_checksum=CHECKSUM)
    known = SourceObject("test://object", source, len(DATA), compares_answers=compares)
    ends = [400_000, 400_000, len(DATA)]  # an item of several blocks, an empty one, and one that begins within a block
    plan = plan_reads([Item(0, begin, end) for begin, end in zip([0, *ends], ends, strict=False)], 0)
    settings = resolve(Options(**{"http_reactors": 1, "http_in_flight": 1, "block_bytes": 8 << 20, **options}))
    session = ReadSession([known], plan, settings, name_of=lambda item: f"item {item}")
    found = [b""] * len(ends)
    try:
        while items := session.next_items():
            for item in items:
                memory = session.take(item)
                found[item] = bytes(memoryview(memory)) if memory is not None else b""
    finally:
        session.close()
    return b"".join(found), session


def test_every_answer_is_asked_for_a_checksum_and_none_for_more_bytes_than_it_may_have() -> None:
    with ScriptedServer(DATA, described) as server:
        found, session = read(server)
    assert found == DATA
    assert session.compares_answers(0)
    assert session.stats()["retries"] == 0
    assert {request.headers["x-send-checksum"] for request in server.requests} == {"yes"}
    assert max(request.end - request.begin for request in server.requests) == BLOCK_BYTES


def test_checksums_are_requested_only_for_comparison() -> None:
    with ScriptedServer(DATA, described) as server:
        found, session = read(server, compares=False)
    assert found == DATA
    assert not session.compares_answers(0)
    assert "x-send-checksum" not in server.requests[0].headers
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "code"), [(500, "FeatureNotSupported"), (400, "UnsupportedHeader")])
def test_a_server_that_refuses_to_send_checksums_is_asked_for_none(status: int, code: str) -> None:
    def refuse(request: Request, answer: Answer) -> None:
        if "x-send-checksum" in request.headers:
            answer.become(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    with ScriptedServer(DATA, refuse) as server:
        found, session = read(server)
    assert found == DATA
    assert not session.compares_answers(0)
    assert ["x-send-checksum" in request.headers for request in server.requests].count(True) == 1


def test_a_wrong_answer_is_requested_once_more() -> None:
    def flip_once(request: Request, answer: Answer) -> None:
        described(request, answer)
        if request.number == 1:
            flipped(answer)

    with ScriptedServer(DATA, flip_once) as server:
        found, session = read(server)
    assert found == DATA
    assert session.compares_answers(0)
    assert session.stats()["retries"] == 1
    begins = [request.begin for request in server.requests]
    assert begins.count(BLOCK_BYTES) == 2


@pytest.mark.parametrize(("at", "item"), [(0, "item 0"), (BLOCK_BYTES, None), (3 * BLOCK_BYTES, "item 2")])
def test_an_answer_that_stays_wrong_ends_the_load(at: int, item: str | None) -> None:
    def flip_always(request: Request, answer: Answer) -> None:
        described(request, answer)
        if request.begin == at:
            flipped(answer)

    with ScriptedServer(DATA, flip_always) as server, pytest.raises(ChecksumError, match="read twice") as caught:
        read(server)
    begin, end = at, min(at + BLOCK_BYTES, len(DATA))
    right = DATA[begin:end]
    wrong = right[:1000] + bytes([right[1000] ^ 4]) + right[1001:]
    assert caught.value.byte_range == (begin, end)
    assert caught.value.tensor == item
    assert caught.value.expected == f"{_native.crc('crc64nvme', right):016x}"
    assert caught.value.found == f"{_native.crc('crc64nvme', wrong):016x}"
    assert [request.begin for request in server.requests].count(at) == 2


def test_a_cut_answer_goes_on_and_is_compared_as_one_with_what_follows() -> None:
    def cut(request: Request, answer: Answer) -> None:
        described(request, answer)
        if request.number == 1:
            answer.sent_bytes = 100_000

    with ScriptedServer(DATA, cut) as server:
        found, session = read(server)
    assert found == DATA
    assert session.compares_answers(0)
    assert BLOCK_BYTES + 100_000 in [request.begin for request in server.requests]  # nothing is read twice


def test_a_flip_before_a_cut_is_found_too() -> None:
    def flip_and_cut(request: Request, answer: Answer) -> None:
        described(request, answer)
        if request.number == 1:
            flipped(answer)
            answer.sent_bytes = 100_000

    with ScriptedServer(DATA, flip_and_cut) as server:
        found, session = read(server)
    assert found == DATA
    begins = [request.begin for request in server.requests]
    assert begins.count(BLOCK_BYTES) == 2  # all of it again: nobody knows which byte was wrong
    assert begins.count(BLOCK_BYTES + 100_000) == 1
    assert session.stats()["retries"] == 2


def bare(request: Request, answer: Answer) -> None:
    """Say nothing of the bytes."""


def bare_in_the_middle(request: Request, answer: Answer) -> None:
    if request.begin != 2 * BLOCK_BYTES:
        described(request, answer)


@pytest.mark.parametrize("script", [bare, bare_in_the_middle])
def test_an_answer_without_a_checksum_is_accepted_and_reported(script: Script) -> None:
    with ScriptedServer(DATA, script) as server:
        found, session = read(server)
    assert found == DATA
    assert not session.compares_answers(0)


def test_a_malformed_checksum_is_a_wrong_answer() -> None:
    def malformed(request: Request, answer: Answer) -> None:
        answer.headers["X-Checksum"] = "AAAA"

    with ScriptedServer(DATA, malformed) as server, pytest.raises(RangeResponseError, match="malformed"):
        read(server)
    assert max(Counter(request.begin for request in server.requests).values()) == 2


def test_a_slow_answer_that_is_overtaken_leaves_no_byte_behind() -> None:
    """It sends a wrong byte and stops: what came of it can never be compared, so the duplicate brings all of it."""
    slow_at = 50 << 16

    def slow(request: Request, answer: Answer) -> None:
        described(request, answer)
        if request.begin != slow_at or [each.begin for each in server.requests].count(slow_at) > 1:
            return
        flipped(answer)
        answer.sent_bytes = 2000
        send = answer.send

        def send_and_stop() -> None:
            send()
            answer.handler.wfile.flush()
            server.stopping.wait(30)

        answer.send = send_and_stop  # type: ignore[method-assign]

    with ScriptedServer(DATA, slow) as server:
        found, session = read(server, block_bytes=1 << 16, http_in_flight=4, hedge_percent=50)
    assert found == DATA
    assert session.compares_answers(0)
    assert session.stats()["hedges"] >= 1
    assert [request.begin for request in server.requests].count(slow_at) == 2
