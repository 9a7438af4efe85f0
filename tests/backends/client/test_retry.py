"""How often a request about objects is sent, after which failures, and after which pauses."""

from __future__ import annotations

import errno
import ssl
from types import SimpleNamespace

import pytest
from each_row import each_row

from streamer.backends.client import retry
from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.error_rows import ErrorRow, row_for
from streamer.backends.client.retry import Attempts, answered, may_pass
from streamer.core.engine.native_errors import error_from_native
from streamer.core.errors import (
    ConnectError,
    HttpStatusError,
    OptionError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
    UsageError,
)
from streamer.core.options.limits import Limits
from streamer.core.outages.outage_waits import limited
from streamer.core.outages.transient import UNKNOWN_HOST

TIMES = answer_times(Limits(connect_timeout_s=10, first_byte_timeout_s=30))


@each_row(
    ("error", "expected"),
    [
        (ConnectError("reset"), True),
        (TransferTimeoutError("silence"), True),
        (HttpStatusError("busy", status=503), True),
        (StorageError("no descriptor", code=errno.errorcode[errno.EMFILE]), True),
        (ConnectError("no such host", code=UNKNOWN_HOST), False),
        (TlsError("certificate"), False),
        (StorageError("refused by us"), False),
        (OptionError("no URL"), False),
    ],
)
def test_only_failures_that_may_pass_are_repeated(error: StreamerError, expected: bool) -> None:
    assert may_pass(error) is expected


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, none of which is waited for."""
    found: list[float] = []
    monkeypatch.setattr(retry, "sleep", found.append)
    return found


def test_there_are_three_attempts_with_growing_pauses(pauses: list[float]) -> None:
    attempts = Attempts(TIMES)
    while not attempts.are_over:
        attempts.wait()
    assert attempts.number == 3
    assert len(pauses) == 2
    assert 0.125 <= pauses[0] <= 0.375
    assert 0.25 <= pauses[1] <= 0.75


def test_a_pause_is_at_least_what_the_server_demands(pauses: list[float]) -> None:
    Attempts(TIMES).wait(60.0)
    assert pauses == [60.0]


@pytest.mark.parametrize(("error", "requests"), [(ConnectError("reset"), 3), (TransferTimeoutError("silence"), 2)])
def test_a_silent_server_gets_two_attempts_and_other_failures_three(
    pauses: list[float], error: StorageError, requests: int
) -> None:
    def fail(_: Attempts) -> None:
        raise error

    with pytest.raises(StorageError) as caught:
        answered(fail, TIMES, "s3://bucket/key")  # type: ignore[arg-type]
    assert caught.value.attempts == requests == len(pauses) + 1
    assert caught.value.uri == "s3://bucket/key"


def test_no_attempt_follows_when_the_time_is_over() -> None:
    attempts = Attempts(TIMES, most=100)
    assert not attempts.are_over
    attempts.began_s -= TIMES.all_headers_s
    assert attempts.are_over


def test_the_probe_of_an_outage_is_sent_once_and_is_brief() -> None:
    with limited(0.5):
        attempts = Attempts(TIMES)
    assert attempts.are_over
    assert attempts.is_repeated  # on a new connection
    assert attempts.head_timeout_s == 0.5


# --- how the backends' tables of errors are read --------------------------------------------------------------------

TABLE = {
    (FileNotFoundError,): ErrorRow(StorageError, "first", "look"),
    (OSError, KeyError): ErrorRow(ConnectError, "second", "hint"),
}


def test_the_first_row_that_matches_counts():
    assert row_for(FileNotFoundError(), TABLE) == ErrorRow(StorageError, "first", "look")
    assert row_for(KeyError(), TABLE) == row_for(PermissionError(), TABLE) == ErrorRow(ConnectError, "second", "hint")
    assert row_for(ValueError(), TABLE) is None
    assert row_for(None, TABLE) is None


def test_a_handshake_with_a_server_without_tls_has_a_hint_of_its_own():
    table = {(ConnectionError,): ErrorRow(TlsError, "handshake", "check the CA")}
    failure = ConnectionError()
    assert row_for(failure, table).hint == "check the CA"
    failure.__cause__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    failure.__cause__.reason = "WRONG_VERSION_NUMBER"
    assert "http://" in row_for(failure, table).hint


def test_an_error_keeps_the_facts_that_its_class_has():
    error = ErrorRow(StorageError, "no {what}", "look").filled(what="bucket").error("s3://b", status=404, attempts=3)
    assert (error.message, error.hint, error.uri, error.status) == ("no bucket", "look", "s3://b", 404)
    assert ErrorRow(UsageError, "bad name", "look").error("s3://b", status=400).uri == "s3://b"


def test_names_of_a_message_are_filled_with_any_text():
    row = ErrorRow(StorageError, "no {bucket!r}", "look").filled(bucket="{x}")
    assert row.after(" at {h}").message == "no '{x}' at {h}"


def test_no_thread_and_no_memory_have_different_hints():
    failure = SimpleNamespace(code="out_of_memory", detail="there is none", begin=0, end=0, os_error=errno.EAGAIN)
    assert "pids.max" in str(error_from_native(failure, uri="s3://b/k", object_size=None))
    failure.os_error = 0
    assert "memory_limit_bytes, let go" in str(error_from_native(failure, uri="s3://b/k", object_size=None))
