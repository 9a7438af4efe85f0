"""Requests at the same time: answers in order, the first failure raised, nobody waited for after an interruption."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from streamer.core.store import parallel
from streamer.core.store.parallel import AnswerTimeoutError, in_parallel


@pytest.fixture
def _idle(monkeypatch):
    """Start as many threads as on an idle machine: this one may be busy."""
    monkeypatch.setattr(parallel, "BUSY_S", 100)


def test_answers_come_in_the_order_of_the_questions():
    def slow_first(number):
        time.sleep(0.05 if number == 0 else 0)
        return number * 2

    assert in_parallel(slow_first, range(40), role="test") == [number * 2 for number in range(40)]
    assert in_parallel(slow_first, [], role="test") == []


@pytest.mark.usefixtures("_idle")
def test_many_questions_are_asked_at_a_time_and_no_thread_is_left():
    running = 0
    are_all_running = threading.Event()
    lock = threading.Lock()

    def ask(_):
        nonlocal running
        with lock:
            running += 1
            if running == 64:
                are_all_running.set()
        are_all_running.wait(0.05)
        with lock:
            running -= 1

    in_parallel(ask, range(1000), role="test")
    assert are_all_running.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamer-test")]


@pytest.mark.usefixtures("_idle")
def test_answers_that_are_long_in_coming_leave_no_thread_out_regression(monkeypatch):
    """The wait for the first answers was taken for one for the interpreter, and ended the starting at seventeen."""
    longest_wait(monkeypatch, seconds=20)
    threads = set()
    are_all_here = threading.Event()

    def ask(_):
        if threading.current_thread() in threads:
            assert are_all_here.wait(60)
        threads.add(threading.current_thread())
        if len(threads) == 64:
            are_all_here.set()

    in_parallel(ask, range(2 * 64), role="test")
    assert len(threads) == 64


def longest_wait(monkeypatch, seconds):
    """Let the clock go on by so many seconds while the first answers are waited for."""
    waited_s = 0
    wait = parallel._Requests._wait_for_answers

    def wait_long(requests, *arguments):
        nonlocal waited_s
        wait(requests, *arguments)
        waited_s += seconds

    monkeypatch.setattr(parallel._Requests, "_wait_for_answers", wait_long)
    monkeypatch.setattr(parallel, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + waited_s))


@pytest.mark.usefixtures("_idle")
def test_no_more_than_the_first_requests_wait_for_a_slow_server():
    few = threading.Semaphore(8)
    asked = []
    are_others_answered = threading.Event()

    def ask(number):
        asked.append(number)
        if few.acquire(blocking=False):  # a process for each of the first connections, and as long as these last
            threading.current_thread().is_served = True
        if not hasattr(threading.current_thread(), "is_served"):
            assert are_others_answered.wait(60)
        elif number == 299:
            are_others_answered.set()
        else:
            time.sleep(0.002)
        return threading.current_thread()

    assert len(set(in_parallel(ask, range(300), role="test"))) == 16
    assert len(asked) == 300


def test_no_more_requests_run_at_a_time_than_wanted():
    running, most = [], []

    def count(_):
        running.append(None)
        most.append(len(running))
        time.sleep(0.002)
        running.pop()

    in_parallel(count, range(60), role="test", most=3)
    assert max(most) == 3


def test_one_question_needs_no_thread():
    assert in_parallel(lambda _: threading.current_thread(), [0], role="test") == [threading.current_thread()]


def test_the_first_failure_is_raised_and_no_more_requests_are_sent():
    asked = []

    def refuse(number):
        asked.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^\d+$") as caught:
        in_parallel(refuse, range(1000), role="test")
    assert caught.value.args[0] == min(asked)
    assert len(asked) <= 128


def test_an_interrupted_caller_leaves_at_once(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(threading.Thread, "join", interrupted(threading.Thread.join))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_parallel(lambda _: release.wait(20), range(100), role="test")
    assert time.monotonic() - started < 10
    release.set()
    monkeypatch.undo()
    for thread in threading.enumerate():
        if thread.name.startswith("streamer-test"):
            thread.join(5)


def interrupted(join):
    def join_or_interrupt(thread, timeout=None):
        if thread.name.startswith("streamer-test"):
            raise KeyboardInterrupt
        join(thread, timeout)

    return join_or_interrupt


def test_without_threads_the_caller_works_alone(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert in_parallel(str, range(5), role="test") == ["0", "1", "2", "3", "4"]


def test_the_failure_of_the_first_request_is_raised_of_several():
    together = threading.Barrier(2)

    def refuse(number):
        together.wait(10)
        raise ValueError(f"of question {number}")

    for _ in range(5):
        with pytest.raises(ValueError, match="of question 0"):
            in_parallel(refuse, range(2), role="test")


def test_calls_that_wait_for_no_answer_share_one_thread(monkeypatch):
    monkeypatch.setattr(parallel, "AT_ONCE_S", 60.0)  # however slow this machine is
    assert len(set(in_parallel(lambda _: threading.get_ident(), range(1000), role="test"))) == 1


def test_no_more_threads_are_started_than_the_interpreter_has_time_for():
    deadline = time.monotonic() + 60
    seen = set()

    def calculate(number):
        seen.add(threading.current_thread().name)
        until = time.thread_time() + 0.02
        while time.thread_time() < until and time.monotonic() < deadline:
            pass

    in_parallel(calculate, range(90), role="test")
    assert len(seen) < 64


def test_calls_without_an_answer_are_abandoned_in_time():
    with pytest.raises(AnswerTimeoutError):
        in_parallel(abs, range(10**9), role="test", give_up_at=time.monotonic() + 0.05)
