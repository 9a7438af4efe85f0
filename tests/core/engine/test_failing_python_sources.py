"""However a thread ends that reads a Python source, the load ends too, and a closed one gives its memory back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import pytest
from each_row import each_row

from streamer import Options, _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import PluginError, StorageError
from streamer.core.options.settings import resolve
from streamer.core.store.sources import PythonSource

SIZE = 3 << 20
PATIENCE_S = 20.0  # a load that hangs fails with another error


def session_of(read_into, **source):
    items = [Item(0, begin, begin + (1 << 20)) for begin in range(0, SIZE, 1 << 20)]
    return ReadSession(
        [SourceObject("test://object", PythonSource(read_into, **source), SIZE)],
        plan_reads(items, 0),
        resolve(Options(block_bytes=1 << 20, python_threads=2, deadline_s=PATIENCE_S)),
    )


def error_of(session, expected=StorageError):
    with pytest.raises(expected) as caught:
        _read_all(session)
    return caught.value


def _read_all(session):
    while items := session.next_items():
        for item in items:
            session.take(item)


def raiser(error):
    def raise_it(*_):
        raise error

    return raise_it


class PanicException(BaseException):
    """As pyo3 raises where Rust panics."""


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError("no text")


@each_row(
    "error",
    [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), PanicException("!")],
)
def test_whatever_a_source_raises_ends_the_load_and_is_its_cause_regression(error):
    raised = error_of(session_of(raiser(error)))
    assert type(error).__name__ in raised.message
    assert raised.__cause__ is error
    assert raised.byte_range is not None


def test_whatever_its_confirmation_raises_ends_the_load_regression():
    def confirm():
        raise asyncio.CancelledError

    raised = error_of(session_of(lambda buffer, offset: len(buffer), confirm=confirm))
    assert isinstance(raised.__cause__, asyncio.CancelledError)


def test_an_error_without_text_ends_the_load_regression():
    raised = error_of(session_of(raiser(UnspeakableError())))
    assert "UnspeakableError" in raised.message
    assert isinstance(raised.__cause__, UnspeakableError)


def test_an_exception_that_is_sent_to_a_reading_thread_ends_the_load_regression():
    def read_into(buffer, offset):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(SystemExit))
        while True:
            time.sleep(0.001)

    assert isinstance(error_of(session_of(read_into)).__cause__, SystemExit)


def test_an_error_of_the_thread_itself_ends_the_load_regression(held, monkeypatch):
    session = session_of(lambda buffer, offset: time.sleep(0.05) or len(buffer))
    monkeypatch.setattr(session._readers, "_read", raiser(MemoryError()))
    assert isinstance(error_of(session).__cause__, MemoryError)
    session.close()
    assert held() == 0


def test_no_memory_for_a_block_with_a_gap_ends_the_load_regression():
    script = """
    import resource
    from streamer import Options
    from streamer.core.errors import OutOfMemoryError
    from streamer.core.engine.plan import Item, plan_reads
    from streamer.core.engine.session import ReadSession, SourceObject
    from streamer.core.options.settings import resolve
    from streamer.core.store.sources import PythonSource
    far = 900 << 20
    plan = plan_reads([Item(0, 0, 10), Item(0, far, far + 10)], far)
    settings = resolve(Options(block_bytes=1 << 30, python_threads=1, deadline_s=20.0))
    source = PythonSource(lambda buffer, offset: len(buffer))
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
    session = ReadSession([SourceObject("test://far", source, far + 10)], plan, settings)
    try:
        session.next_items()
    except OutOfMemoryError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "no memory to read a block into" in done.stdout, done.stderr
    assert "test://far" in done.stdout
    assert done.stderr == ""


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held():
    """Bytes the engine holds beyond those of before; a reader may need a moment to return from its call."""
    gc.collect()
    before = _native.arena_stats()["held_bytes"]

    def held_bytes():
        ends_at = time.monotonic() + 2
        while (left := _native.arena_stats()["held_bytes"] - before) and time.monotonic() < ends_at:
            time.sleep(0.01)
        return left

    gc.disable()  # what is freed is freed without the collector
    yield held_bytes
    gc.enable()


def fails_late(buffer, offset):
    part = buffer[10:]  # in the frame, which the exception holds
    if offset:
        raise OSError(5, "the tape is torn")
    return len(part) + 10


def test_a_failed_source_keeps_no_memory_even_while_its_error_is_kept_regression(held):
    session = session_of(fails_late)
    error = error_of(session)
    assert "fails_late" in "".join(traceback.format_exception(error.__cause__))
    session.close()
    assert held() == 0


def test_a_buffer_that_a_failed_source_kept_stays_until_it_is_let_go_of(held):
    kept = []

    def keep(buffer, offset):
        kept.append(buffer[:1])
        raise OSError(5, "the tape is torn")

    session = session_of(keep)
    error_of(session)
    session.close()
    assert held() > 0
    kept[0][0] = 1  # and is still memory
    kept.clear()
    assert held() == 0


def test_a_source_that_keeps_the_buffer_keeps_no_memory_once_it_let_go_regression(held):
    kept = []

    def keep(buffer, offset):
        kept.append(buffer[:1])
        return len(buffer)

    session = session_of(keep)
    error_of(session, PluginError)
    session.close()
    kept.clear()
    assert held() == 0


@pytest.mark.parametrize("ends_with", [None, OSError(5, "the tape is torn"), SystemExit()], ids=repr)
def test_a_late_reader_gives_the_memory_back_when_it_ends_regression(held, ends_with):
    reading, may_end = threading.Event(), threading.Event()

    def read_into(buffer, offset):
        reading.set()
        assert may_end.wait(PATIENCE_S)
        if ends_with is not None:
            raise ends_with
        return len(buffer)

    session = session_of(read_into)
    assert reading.wait(PATIENCE_S)
    session.close()
    assert held() > 0
    may_end.set()
    deadline = time.monotonic() + PATIENCE_S
    while held() > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() == 0


def test_no_descriptor_or_thread_is_left_of_failed_loads(held):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        session = session_of(raiser(asyncio.CancelledError()))
        error_of(session)
        session.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # others may end meanwhile
    assert held() == 0


def test_a_source_that_gets_over_an_error_keeps_no_buffer_regression():
    """A future and its error hold each other, and the error's frames the buffer: the source was blamed for it."""

    def fail(buffer):
        raise ConnectionResetError(len(buffer))

    def read_into(buffer, offset):
        try:
            fail(buffer[:10])
        except ConnectionResetError as error:
            error.future = [error]
        return len(buffer)

    session = session_of(read_into)
    _read_all(session)
    session.close()


def test_the_first_of_two_failures_is_the_cause():
    first_failed = threading.Event()

    def read_into(buffer, offset):
        if offset == 0:
            first_failed.set()
            raise ValueError("first")
        assert first_failed.wait(PATIENCE_S)
        time.sleep(0.2)  # behind the engine's note of the first
        raise ValueError("second")

    session = session_of(read_into)
    give_up_at = time.monotonic() + PATIENCE_S
    while any(thread.name.startswith("streamer-py") for thread in threading.enumerate()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    assert str(error_of(session).__cause__) == "first"


def test_another_threads_garbage_collection_does_not_blame_a_source_regression(monkeypatch):
    """`gc.collect` does nothing while another thread collects: garbage held the buffer, and the source was blamed."""
    collect, asked = gc.collect, []

    def busy_at_first():
        asked.append(1)
        return collect() if len(asked) > 2 else 0

    def read_into(buffer, offset):
        cycle = [buffer[:10]]
        cycle.append(cycle)
        return len(buffer)

    monkeypatch.setattr("streamer.core.engine.python_readers.gc.collect", busy_at_first)
    session = session_of(read_into)
    _read_all(session)
    session.close()
    assert len(asked) > 2
