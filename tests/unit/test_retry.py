"""How often the clients of storages retry, after which failures, and how long they pause."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest

from streamer.backends.client import retry
from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.bounded_answers import TooSlowError, is_transient
from streamer.backends.client.retry import Attempts
from streamer.core.errors import StorageError
from streamer.core.options.limits import Limits

TIMES = answer_times(Limits(connect_timeout_s=10, first_byte_timeout_s=30))
KEY = SimpleNamespace(host="h", port=1, ssl=True, is_ssl=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError(), True),
        (asyncio.TimeoutError(), True),
        (aiohttp.ClientConnectorSSLError(KEY, OSError()), False),
        (TooSlowError(), False),
        (StorageError("refused by us"), False),
        (aiohttp.InvalidURL("x"), False),
        (ValueError(), False),
    ],
)
def test_only_failures_that_may_pass_are_transient(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, none of which is waited for."""
    found: list[float] = []

    async def note(pause_s: float) -> None:
        found.append(pause_s)

    monkeypatch.setattr(retry.asyncio, "sleep", note)
    return found


def test_there_are_three_attempts_with_growing_pauses(pauses: list[float]) -> None:
    attempts = Attempts(TIMES)
    while not attempts.are_over:
        asyncio.run(attempts.pause())
    assert attempts.number == 3
    assert len(pauses) == 2
    assert 0.125 <= pauses[0] <= 0.375
    assert 0.25 <= pauses[1] <= 0.75


def test_a_pause_is_at_least_what_the_server_demands(pauses: list[float]) -> None:
    asyncio.run(Attempts(TIMES).pause(60.0))
    assert pauses == [60.0]


def test_no_attempt_follows_when_the_time_is_over() -> None:
    attempts = Attempts(TIMES, most=100)
    assert not attempts.are_over
    attempts.began_s -= TIMES.all_headers_s
    assert attempts.are_over
