"""How questions to a server that is away are asked again."""

from __future__ import annotations

import itertools
import os
import threading
import time
from math import inf

import pytest

from streamer import _native
from streamer.backends.client.error_rows import refusal_of_proxy
from streamer.core.errors import ConnectError, HttpStatusError, ObjectNotFoundError, StorageError
from streamer.core.outages import outage_waits as server_outages
from streamer.core.outages.counters import note_bytes
from streamer.core.outages.outage_waits import OutageWaits, first_byte_limit_s

NAMES = (f"http://host{number}" for number in itertools.count())


@pytest.fixture
def server(monkeypatch):
    """Return the URL of a server that no other test uses."""
    monkeypatch.setattr(server_outages, "LOOK_S", 0.005)
    return next(NAMES)


def ask(patience, server, question, proxy=""):
    return patience.ask(server, question, lookup_of(server, proxy))


def lookup_of(server, proxy=""):
    return _native.Lookup(server.encode(), proxy)


def answering(*answers):
    """A question that is answered so, one after the other; the last for ever."""
    left = list(answers)
    asked = []

    def question():
        answer = left.pop(0) if len(left) > 1 else left[0]
        asked.append(answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    question.asked = asked
    return question


def refused(message="refused"):
    """Three attempts of a storage's client, as many as begin an outage."""
    return ConnectError(message, attempts=3)


def test_a_server_that_answered_is_asked_again(server):
    patience = OutageWaits(10)
    ask(patience, server, answering("first"))
    question = answering(refused(), refused(), "second")
    assert ask(patience, server, question) == "second"
    assert len(question.asked) == 3
    assert (patience.outages, patience.probes) == (1, 2)


def test_a_failure_while_others_are_answered_is_no_outage_regression(server):
    """A server that refused half of all lookups at random was left alone by all of them, again and again."""
    patience = OutageWaits(10)

    def question():
        if len(asked) < 3:
            asked.append(ask(patience, server, answering("another")))
            raise HttpStatusError("busy", status=503)
        return "at last"

    asked = []
    ask(patience, server, answering("first"))
    assert ask(patience, server, question) == "at last"
    assert len(asked) == 3
    assert (patience.outages, patience.probes) == (0, 0)


def test_a_single_failed_request_is_no_outage(server):
    patience = OutageWaits(10)
    ask(patience, server, answering("first"))
    assert ask(patience, server, answering(ConnectError("refused"), ConnectError("refused"), "second")) == "second"
    assert (patience.outages, patience.probes) == (0, 0)


def test_all_lookups_and_reads_share_an_outage_and_a_probe_is_brief(server):
    def question():
        limits.append(first_byte_limit_s())
        if len(limits) <= 2:
            raise refused()

    limits = []
    ask(OutageWaits(10), server, answering("first"))
    kept = lookup_of(server)
    with pytest.raises(ConnectError):
        ask(OutageWaits(0), server, question)
    assert kept.outage is not None
    patience = OutageWaits(10)
    ask(patience, server, question)
    assert (patience.outages, patience.probes) == (1, 2)
    assert kept.outage is None
    assert limits == [inf, 2, 4]


def test_a_failure_while_others_are_answered_is_waited_for_no_longer_than_any_other(server):
    def question():
        ask(patience, server, answering("another"))
        raise HttpStatusError("busy", status=503)

    patience = OutageWaits(0.5)
    with pytest.raises(HttpStatusError):
        ask(patience, server, question)
    assert patience.outages == 0


def test_a_server_that_never_answered_is_not_waited_for(server):
    question = answering(refused(), "late")
    with pytest.raises(ConnectError):
        ask(OutageWaits(10), server, question)
    assert len(question.asked) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_status_that_asks_for_patience_is_an_answer(server, status):
    assert ask(OutageWaits(10), server, answering(HttpStatusError("busy", status=status), "well")) == "well"


@pytest.mark.parametrize(
    "final",
    [
        ObjectNotFoundError("absent", status=404),
        StorageError("odd"),
        ValueError("bug"),
    ],
)
def test_what_will_not_pass_is_raised_at_once(server, final):
    patience = OutageWaits(10)
    ask(patience, server, answering("first"))
    question = answering(final, "never")
    with pytest.raises(type(final)):
        ask(patience, server, question)
    assert len(question.asked) == 1
    assert patience.outages == 0


@pytest.mark.parametrize("status", [408, 500])
def test_failures_of_single_requests_are_repeated_for_a_shorter_time(server, status, monkeypatch):
    monkeypatch.setattr(server_outages, "LIMIT_OF_ONE_REQUEST_S", 0.1)
    patience = OutageWaits(60)
    assert ask(patience, server, answering(HttpStatusError("broken", status=status), "well")) == "well"
    with pytest.raises(HttpStatusError):
        ask(patience, server, answering(HttpStatusError("broken", status=status)))


@pytest.mark.parametrize("status", [408, 500])
def test_a_single_failing_object_is_no_outage_regression(server, status, monkeypatch):
    """The error told how long the server had been failing, and advised to wait."""
    monkeypatch.setattr(server_outages, "LIMIT_OF_ONE_REQUEST_S", 0.1)
    patience = OutageWaits(60)
    ask(patience, server, answering("well"))
    with pytest.raises(HttpStatusError, match="alone: it answers other requests") as caught:
        ask(patience, server, answering(HttpStatusError("broken", status=status, hint="Wait")))
    assert "has been failing" not in str(caught.value)
    assert "Check this object" in caught.value.hint


def test_a_server_that_answered_by_another_route_is_not_waited_for_regression(server):
    """A wrong proxy was waited for two minutes, though the server had answered directly."""
    ask(OutageWaits(10), server, answering("well"))
    question = answering(refused())
    with pytest.raises(ConnectError):
        ask(OutageWaits(10), server, question, "http://proxy.test:3128")
    assert len(question.asked) == 1


def test_a_refusal_of_the_proxy_is_no_answer_of_the_server_regression(server):
    question = answering(refusal_of_proxy(503).error(None, status=503))
    with pytest.raises(HttpStatusError, match="proxy"):
        ask(OutageWaits(10), server, question)
    assert len(question.asked) == 1


def test_questions_that_wait_at_a_time_count_once(server):
    patience, count = OutageWaits(60), 8
    ask(patience, server, answering("first"))
    began, is_back = time.monotonic(), threading.Event()

    def question():
        if not is_back.is_set():
            raise refused()

    threads = [threading.Thread(target=ask, args=(patience, server, question)) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    is_back.set()
    for thread in threads:
        thread.join()
    assert 0.2 <= patience.waited_s <= time.monotonic() - began
    assert patience.outages == 1


def test_a_server_is_left_alone_for_as_long_as_it_asks(server):
    busy = HttpStatusError("busy", status=429)
    busy.retry_after_s = 0.3
    question = answering(busy, "well")
    began = time.monotonic()
    assert ask(OutageWaits(60), server, question) == "well"
    assert time.monotonic() - began >= 0.3


def test_a_server_that_asks_for_more_time_than_there_is_ends_the_wait_at_once(server):
    busy = HttpStatusError("busy", status=429)
    busy.retry_after_s = 61
    began = time.monotonic()
    with pytest.raises(HttpStatusError, match=r"busy; .* it asks for a pause of 61 s"):
        ask(OutageWaits(60), server, answering(busy, "never asked for"))
    assert time.monotonic() - began < 10


def test_the_history_names_a_silent_server(server):
    patience, release = OutageWaits(60), threading.Event()
    thread = threading.Thread(target=ask, args=(patience, server, release.wait))
    thread.start()
    while not patience.describe():
        time.sleep(0.001)
    assert patience.describe().startswith(f"; {server} has not answered for 0.")
    release.set()
    thread.join()
    assert patience.describe() == ""


def test_the_history_names_a_server_with_an_endless_answer(server):
    patience, noted, release = OutageWaits(60), threading.Event(), threading.Event()

    def question():
        note_bytes(10)
        note_bytes(7)
        noted.set()
        release.wait()

    thread = threading.Thread(target=ask, args=(patience, server, question))
    thread.start()
    noted.wait()
    assert patience.describe().startswith(f"; {server} has sent 17 bytes in 0.")
    release.set()
    thread.join()


def test_the_answer_that_there_is_nothing_ends_an_outage(server):
    patience = OutageWaits(10)
    ask(patience, server, answering("first"))
    with pytest.raises(ObjectNotFoundError):
        ask(patience, server, answering(refused(), ObjectNotFoundError("absent", status=404)))
    assert lookup_of(server).outage is None


def test_the_error_after_the_last_attempt_has_the_first_and_the_last_failure(server):
    patience = OutageWaits(0.2)
    ask(patience, server, answering("first"))
    with pytest.raises(ConnectError) as caught:
        ask(patience, server, answering(refused("broken off"), refused()))
    assert caught.value.message.startswith(f"refused; {server} has been failing for 0.")
    assert caught.value.message.endswith("; at first: broken off")
    assert caught.value.attempts > 2


def test_threads_send_one_probe_together(server):
    patience, together = OutageWaits(10), threading.Barrier(8)
    ask(patience, server, answering("first"))
    most, now, guard = [0], [0], threading.Lock()
    is_back = threading.Event()

    def question():
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with guard:
            now[0] -= 1
        if not is_back.is_set():
            raise refused()

    known = lookup_of(server)
    with pytest.raises(ConnectError):
        ask(OutageWaits(0), server, question)  # the outage is known
    threads = [threading.Thread(target=lambda: (together.wait(), ask(patience, server, question))) for _ in range(8)]
    for thread in threads:
        thread.start()
    while known.outage.failed < 5:
        time.sleep(0.001)
    assert most == [1]
    is_back.set()
    for thread in threads:
        thread.join()


def test_an_end_lets_everybody_go(server):
    patience = OutageWaits(60)
    ask(patience, server, answering("first"))
    ended = threading.Event()

    def wait():
        with pytest.raises(ConnectError):
            ask(patience, server, answering(refused()))
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    patience.end()
    assert ended.wait(5)
    thread.join()


def test_an_interrupted_probe_leaves_the_turn_to_others(server):
    patience = OutageWaits(10)
    ask(patience, server, answering("first"))
    with pytest.raises(KeyboardInterrupt):
        ask(patience, server, answering(refused(), KeyboardInterrupt()))
    assert ask(patience, server, answering("second")) == "second"


def test_a_child_knows_nothing_of_its_parents_outages(server):
    ask(OutageWaits(1), server, answering("first"))
    child = os.fork()
    if child == 0:
        os._exit(1 if lookup_of(server).has_server_answered else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
