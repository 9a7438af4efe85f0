"""Life and death of a session: limits, cancelling, garbage collection, signals, fork, exit, and Python sources."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from streamer import Options, _native
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import FileSource, PythonSource
from streamer.core.tensors.device_tensors import Provision

DATA = os.urandom(3_000_001)


def session_over(source, cuts, *, in_item_order=False, size=None, **options):
    items = [Item(0, begin, end) for begin, end in cuts]
    return ReadSession(
        [SourceObject("test://object", source, size or len(DATA))],
        plan_reads(items, 0),
        resolve(Options(**options)),
        in_item_order=in_item_order,
    )


def collect(session):
    found = {}
    while indices := session.next_items():
        found.update({index: bytes(memoryview(session.take(index))) for index in indices})
    return found


def equal_cuts(count):
    size = len(DATA) // count
    return [(i * size, (i + 1) * size) for i in range(count)]


def read_into_data(buffer, offset):
    buffer[:] = DATA[offset : offset + len(buffer)]
    return len(buffer)


@pytest.fixture
def file_source(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return FileSource(str(path))


@pytest.fixture(params=["file", "python"])
def source(request, file_source):
    return file_source if request.param == "file" else PythonSource(read_into_data)


@pytest.mark.parametrize("in_item_order", [False, True])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_every_item_arrives_once_and_right(source, count, in_item_order):
    cuts = equal_cuts(count)
    found = collect(session_over(source, cuts, in_item_order=in_item_order, block_bytes=64 << 10))
    assert [found[i] for i in range(count)] == [DATA[begin:end] for begin, end in cuts]
    if in_item_order:
        assert list(found) == list(range(count))


def test_gaps_are_read_through_and_dropped(source):
    items = [Item(0, 100, 200), Item(0, 90_000, 90_010), Item(0, 500_000, 700_000)]
    plan = plan_reads(items, 1 << 20)
    session = ReadSession([SourceObject("test://object", source, len(DATA))], plan, resolve(None))
    assert list(dict(sorted(collect(session).items())).values()) == [DATA[i.begin : i.end] for i in items]


@pytest.mark.parametrize("limit", [1, 100_000, 1_000_000])
def test_the_memory_limit_holds_even_below_the_largest_item(source, limit):
    cuts = [(0, 50), (50, 2_000_000), (2_000_000, 2_000_100), (2_000_100, len(DATA))]
    session = session_over(source, cuts, memory_limit_bytes=limit, block_bytes=64 << 10)
    found = collect(session)
    assert [found[i] for i in range(4)] == [DATA[begin:end] for begin, end in cuts]
    assert session.stats()["peak_held_bytes"] <= max(limit, 1_999_950)


def test_what_was_handed_over_is_never_written_again(file_source):
    cuts = equal_cuts(200)
    session = session_over(file_source, cuts, memory_limit_bytes=100_000, block_bytes=64 << 10)
    kept = {}
    while indices := session.next_items():
        kept.update({index: session.take(index) for index in indices})
    assert all(bytes(memoryview(kept[i])) == DATA[begin:end] for i, (begin, end) in enumerate(cuts))
    assert len({memory.address for memory in kept.values()}) == 200


def endless(buffer, offset):
    time.sleep(0.01)
    return len(buffer)


def test_closing_stops_within_a_second_and_wakes_the_consumer():
    session = session_over(PythonSource(endless), equal_cuts(3000), block_bytes=64 << 10, memory_limit_bytes=1 << 20)
    caught = []

    def consume():
        try:
            while session.next_items():
                pass
        except errors.LoadCancelledError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    started = time.monotonic()
    session.close()
    consumer.join(5)
    assert caught
    assert time.monotonic() - started < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamer")]


def test_dropping_the_session_stops_its_threads(source):
    session = session_over(source, equal_cuts(1000), memory_limit_bytes=1, block_bytes=64 << 10)
    session.next_items()
    del session
    gc.collect()
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if name.startswith("streamer")]


class LentMemory:
    """Memory of the consumer's that the engine asks for, as `DeviceTensors` gives it."""

    def __init__(self):
        self.memory = bytearray(10)
        self.is_freed = False

    def streams(self):
        return {}

    def allocate(self, items):
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        return [Provision(_native.CONSUMERS_HOST, 0, items, [address])]

    def free_all(self):
        self.is_freed = True


def test_memory_that_a_late_source_may_still_write_is_not_freed_regression(monkeypatch):
    monkeypatch.setattr("streamer.core.engine.python_readers.JOIN_S", 0.01)
    lent, is_asked, may_write = LentMemory(), threading.Event(), threading.Event()

    def give_up(_session):
        if is_asked.is_set():
            raise errors.TransferTimeoutError("the source does not answer")

    def write_late(buffer, offset):
        is_asked.set()
        assert may_write.wait(20)
        return read_into_data(buffer, offset)

    monkeypatch.setattr(ReadSession, "_check_deadline", give_up)
    session = ReadSession(
        [SourceObject("test://object", PythonSource(write_late), len(DATA))],
        plan_reads([Item(0, 0, 10, 0, _native.CONSUMERS_HOST)], 0),
        resolve(None),
        device_tensors=lent,
    )
    try:
        with pytest.raises(errors.TransferTimeoutError):
            session.next_items()
        session.close()
        assert not lent.is_freed
    finally:
        may_write.set()
    while [thread for thread in threading.enumerate() if thread.name.startswith("streamer-py")]:
        time.sleep(0.001)
    assert bytes(lent.memory) == DATA[:10]
    session.close()
    assert lent.is_freed


def test_a_short_python_source_is_truncation_with_its_range():
    session = session_over(PythonSource(lambda buffer, offset: len(buffer) - 1), [(10, 30)])
    with pytest.raises(errors.TruncatedError, match="19 bytes of 20") as caught:
        collect(session)
    assert caught.value.byte_range == (10, 30)


@pytest.mark.parametrize("answer", [None, -1, 10**9, "20"])
def test_a_python_source_that_answers_nonsense_is_named(answer):
    with pytest.raises(errors.PluginError, match="read_into returned"):
        collect(session_over(PythonSource(lambda buffer, offset: answer), [(10, 30)]))


def test_an_exception_of_a_python_source_keeps_its_cause():
    def fail(buffer, offset):
        raise OSError(5, "the tape is torn")

    with pytest.raises(errors.StorageError, match="the tape is torn") as caught:
        collect(session_over(PythonSource(fail), [(10, 30)]))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_python_source_that_keeps_the_buffer_is_refused():
    kept = []

    def keep(buffer, offset):
        kept.append(memoryview(buffer)[:1])
        return len(buffer)

    with pytest.raises(errors.PluginError, match="keeps a reference"):
        collect(session_over(PythonSource(keep), [(10, 30)]))


def test_a_python_source_is_called_by_as_many_threads_as_it_allows():
    inside, seen = [], []

    def count(buffer, offset):
        inside.append(1)
        seen.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return read_into_data(buffer, offset)

    collect(session_over(PythonSource(count, max_threads=1), equal_cuts(10), block_bytes=64 << 10))
    assert max(seen) == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_a_source_confirms_once_all_is_read_where_a_block_ends_in_a_gap_regression(threads):
    block = 64 << 10
    items = [Item(0, 0, block - 500), Item(0, block + 500, 2 * block), Item(0, 3 * block + 1, 3 * block + 10)]
    read, confirmed_at = [], []

    def read_into(buffer, offset):
        got = read_into_data(buffer, offset)
        read.append(offset)
        return got

    def confirm():
        confirmed_at.append(sorted(read))
        raise errors.ChangedError("it was replaced")

    session = ReadSession(
        [SourceObject("test://object", PythonSource(read_into, confirm=confirm), len(DATA))],
        plan_reads(items, 2 * block),
        resolve(Options(block_bytes=block, python_threads=threads)),
    )
    with pytest.raises(errors.ChangedError):
        collect(session)
    assert confirmed_at == [[0, block + 500, 3 * block + 1]]


def run_script(code, *arguments, timeout=30, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
        **kwargs,
    )


SLOW_SESSION = """
    import os, sys, time, threading, signal
    from streamer.core.engine.plan import Item, plan_reads
    from streamer.core.engine.session import ReadSession, SourceObject
    from streamer.core.options.settings import resolve
    from streamer.core.store.sources import PythonSource
    def slow(buffer, offset):
        time.sleep(0.2 if offset == 0 else 0.3)
        return len(buffer)
    plan = plan_reads([Item(0, i * 100, i * 100 + 100) for i in range(1000)], 0)
    from streamer import Options
    settings = resolve(Options(block_bytes=1 << 16, python_threads=1))
    session = ReadSession([SourceObject("test://slow", PythonSource(slow), 1000000)], plan, settings)
"""


def test_ctrl_c_ends_the_wait_at_once():
    code = (
        SLOW_SESSION
        + """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored from birth when run in the background
    started = time.monotonic()
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        while session.next_items():
            pass
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - started < 1.5)
    """
    )
    done = run_script(code)
    assert (done.stdout.strip(), done.returncode) == ("interrupted True", 0), done.stderr


def test_the_interpreter_exits_cleanly_in_the_middle_of_a_load():
    done = run_script(SLOW_SESSION + "\n    print('leaving')\n")
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("leaving", "", 0)


def test_a_forked_child_refuses_its_parents_session_and_can_open_its_own(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * 1000)
    code = (
        SLOW_SESSION
        + """
    from streamer.core.errors import EngineError
    from streamer.core.store.sources import FileSource
    child = os.fork()
    if child == 0:
        try:
            session.next_items()
        except EngineError as error:
            assert "fork" in str(error)
        own = ReadSession([SourceObject("x", FileSource(sys.argv[1]), 1000)], plan_reads([Item(0, 0, 10)], 0), settings)
        assert own.next_items() == [0] and bytes(memoryview(own.take(0))) == b"x" * 10
        del session
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    )
    done = run_script(code, str(path))
    assert (done.stdout.strip(), done.returncode) == ("7", 0), done.stderr


def test_a_file_rewritten_between_two_sessions_is_noticed(file_source):
    first = session_over(file_source, [(0, 10)])
    collect(first)
    pinned = first.pinned()[0].version
    os.utime(file_source.path, ns=(1, 1))
    again = ReadSession(
        [SourceObject("test://object", file_source, len(DATA), pinned)], plan_reads([Item(0, 0, 10)], 0), resolve(None)
    )
    with pytest.raises(errors.ChangedError):
        collect(again)


def test_python_sources_are_read_with_as_many_threads_as_there_are(monkeypatch):
    start = threading.Thread.start
    refused = []

    def start_one(thread):
        if not thread.name.startswith("streamer-py") or (thread.name == "streamer-py0" and may_have_one):
            return start(thread)
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start_one)
    may_have_one = True
    found = collect(session_over(PythonSource(read_into_data), equal_cuts(3)))
    assert refused == ["streamer-py1"]
    assert [found[index] for index in range(3)] == [DATA[begin:end] for begin, end in equal_cuts(3)]
    may_have_one = False
    with pytest.raises(errors.OutOfMemoryError, match=r"no thread.*pids\.max"):
        session_over(PythonSource(read_into_data), equal_cuts(3))


def test_signals_reach_python_while_the_engine_waits():
    received = []
    previous = signal.signal(signal.SIGALRM, lambda *_: received.append(time.monotonic()))
    try:
        session = session_over(PythonSource(lambda buffer, offset: time.sleep(0.6) or len(buffer)), [(0, 10)])
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        started = time.monotonic()
        session.next_items()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert received[0] - started < 0.5


def test_a_session_that_failed_holds_nothing_any_more(tmp_path):
    (tmp_path / "first").write_bytes(DATA)
    objects = [
        SourceObject(f"test://{name}", FileSource(str(tmp_path / name)), len(DATA)) for name in ("first", "absent")
    ]
    held, before = _native.arena_stats()["held_bytes"], set(Path("/proc/self/task").iterdir())
    session = ReadSession(objects, plan_reads([Item(0, 0, len(DATA)), Item(1, 0, len(DATA))], 0), resolve(Options()))
    with pytest.raises(errors.ObjectNotFoundError):
        collect(session)
    assert set(Path("/proc/self/task").iterdir()) <= before
    assert _native.arena_stats()["held_bytes"] <= held
    session.close()
