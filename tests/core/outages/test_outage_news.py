"""What the user hears of a server that is waited for."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace

import pytest
from each_row import each_row

from streamer.core import errors
from streamer.core.outages import news as outage_news
from streamer.core.outages.news import OutageLog, OutageNews
from streamer.core.outages.transient import is_transient

SERVER = "https://host:9000"


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets; `time.monotonic` of the module."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(outage_news.time, "monotonic", lambda: now.seconds)
    return now


def heard(clock, caplog, story):
    """Look once for each second of `story`, a list of how long the server has been away; None: it is not."""
    return heard_by(1, clock, caplog, story)


def heard_by(loads, clock, caplog, story):
    """The same for several loads; the lines are of all their bars."""
    lines, outage_log = [], OutageLog()
    engine = SimpleNamespace(outages=lambda: outages)
    every_news = [OutageNews(engine, lines.append, outage_log) for _ in range(loads)]
    with caplog.at_level(logging.WARNING, "streamer"):
        for waited_s in story:
            outages = [] if waited_s is None else [SimpleNamespace(server=SERVER, waited_s=waited_s, **ASKED)]
            clock.seconds += 1
            for news in every_news:
                news.look()
    return lines, [record.getMessage() for record in caplog.records]


ASKED = {"probes": 3, "last_failure": "refused"}


def test_a_short_outage_is_not_worth_a_word(clock, caplog):
    assert heard(clock, caplog, [0.4, 0.9, None]) == ([], [])


def test_a_long_outage_and_its_end_are_logged(clock, caplog):
    lines, log = heard(clock, caplog, [0.5, 1.5, 2.5, None, None])
    assert lines == [f"waiting for {SERVER}, away for 2 s", f"waiting for {SERVER}, away for 2 s", ""]
    assert log == [f"waiting for {SERVER}, away for 2 s, asked 3 times: refused", f"{SERVER} answers again, after 4 s"]


def test_a_long_outage_is_logged_again_every_ten_seconds(clock, caplog):
    lines, log = heard(clock, caplog, range(1, 25))
    assert len(lines) == 24
    assert [line.split(",")[1] for line in log] == [" away for 1 s", " away for 11 s", " away for 21 s"]


def test_ten_loads_that_wait_for_one_server_say_it_once(clock, caplog):
    lines, log = heard_by(10, clock, caplog, [1.5, 2.5, None])
    assert len(lines) == 30
    assert log == [
        f"waiting for {SERVER}, away for 2 s, asked 3 times: refused",
        f"{SERVER} answers again, after 4 s",
    ]


def test_an_outage_without_an_observed_end_does_not_hide_the_next_one(clock, caplog):
    """A load that ended in an outage left it open: the next one was not told, and its end with the age of both."""
    outage_log, outages = OutageLog(), [SimpleNamespace(server=SERVER, waited_s=2.0, **ASKED)]
    engine = SimpleNamespace(outages=lambda: outages)
    first = OutageNews(engine, None, outage_log)
    first.look()
    first.end()
    clock.seconds += 100
    outages[0].waited_s = 3.0
    second = OutageNews(engine, None, outage_log)
    second.look()
    outages.clear()
    second.end()
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        f"waiting for {SERVER}",
        f"waiting for {SERVER}",
        f"{SERVER} answers again",
    ]
    assert caplog.records[-1].getMessage().endswith("after 3 s")


def test_looking_often_costs_nothing(clock):
    looks = []
    news = OutageNews(SimpleNamespace(outages=lambda: looks.append(None) or []), None)
    for _ in range(1000):
        news.look()
    assert len(looks) == 1


# --- which failures of a storage are worth another attempt ----------------------------------------------------------


class StatusError(Exception):
    """As aiohttp's and azure's."""

    def __init__(self, status):
        self.status = status


PASSING = [
    ConnectionResetError(),
    TimeoutError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    BlockingIOError(errno.EAGAIN, "try again"),
    errors.ConnectError("refused"),
    errors.TransferTimeoutError("late"),
    errors.HttpStatusError("busy", status=503),
    StatusError(429),
]
STAYING = [
    ValueError(),
    FileNotFoundError(errno.ENOENT, "gone"),
    OSError(errno.EIO, "broken"),
    errors.TlsError("certificate"),
    errors.HttpStatusError("bad request", status=400),
    errors.ChangedError("another one"),
    errors.TruncatedError("short"),
    errors.CredentialsError("no", status=401),
    StatusError(404),
]


@each_row("error", PASSING)
def test_failures_that_may_pass_are_transient(error):
    assert is_transient(error)


@each_row("error", STAYING)
def test_failures_that_stay_are_not_transient(error):
    assert not is_transient(error)
