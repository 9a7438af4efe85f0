"""An interrupt at any step of a thread that uses a condition leaves no lock taken, and no other thread waiting."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sizes
from each_row import each_row

from streamer.core.conditions import Condition, Event
from streamer.core.store.parallel import in_parallel
from streamer.core.store.part_sender import PartSender

STEPS = ("c_return", "return", "call")  # between which Python looks for an interrupt
OTHERS = ("_bootstrap", "start", "join", "is_set", "_remove")  # of threads themselves; their locks are Python's


class Upload:
    parallel_parts = 2

    def send(self, offset_bytes: int, part: memoryview) -> None:
        threading.Event().wait(0.0001)


SENDERS: list[PartSender] = []


def send() -> None:
    SENDERS.append(PartSender(2))
    with SENDERS[-1] as sender:
        sender.send(Upload(), (memoryview(b"ab") for _ in range(3)), lambda _: None)  # type: ignore[arg-type]


def ask() -> None:
    assert in_parallel(lambda each: threading.Event().wait(0.0001) or each, range(3), role="test") == [0, 1, 2]


def wait_for_news() -> None:
    condition = Condition()

    def tell() -> None:
        with condition:
            condition.notify_all()

    thread = threading.Thread(target=tell)
    try:
        with condition:
            thread.start()
            condition.wait(5)
    finally:
        if thread.ident is not None:
            thread.join()


def wait_for_event() -> None:
    event = Event()
    thread = threading.Thread(target=event.set)
    try:
        thread.start()
        assert event.wait(5)
        assert event.is_set()
    finally:
        if thread.ident is not None:
            thread.join()


def is_ours(frame: FrameType | None) -> bool:
    """Whether a step belongs to a condition of ours, not to one inside Python's own threads and events."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), threading.Event) or frame.f_code.co_name in OTHERS:
            return False
        if frame.f_code.co_name in ("send", "ask", "wait_for_news", "wait_for_event"):
            return True
        frame = frame.f_back
    return False


def interrupted(call: Any, event: str, at: int) -> tuple[bool, Any]:
    """Interrupt a call at one step; return whether there was this step, and what the call raised."""
    left, raised = [at], []

    def count(frame: FrameType, step: str, _: Any) -> None:
        if step == event and left[0] and is_ours(frame):
            left[0] -= 1
            if not left[0]:
                sys.setprofile(None)
                raise KeyboardInterrupt

    def run() -> None:
        sys.setprofile(count)
        try:
            call()
        except BaseException as error:
            raised.append(type(error))
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), f"it waits for ever after an interrupt at {event} number {at}"
    return not left[0], raised


def test_no_other_condition_is_used() -> None:
    root = Path(__file__).resolve().parents[2]
    files = (path for folder in sizes.PRODUCT_FOLDERS for path in (root / folder).rglob("*.py"))
    kinds = re.compile(r"threading\.(Condition|Event)\(|from threading import .*(Condition|Event)")
    assert not [str(path) for path in files if path.name != "conditions.py" and kinds.search(path.read_text())]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Let no other library's callback of the garbage collector take the interrupt, and lose it."""
    gc.disable()
    yield
    gc.enable()


@each_row("event", STEPS)
@each_row("call", [send, ask, wait_for_news, wait_for_event])
def test_an_interrupt_at_any_step_ends_a_wait_regression(call: Any, event: str) -> None:
    at = 1
    while True:
        was_there, raised = interrupted(call, event, at)
        if not was_there:
            break
        assert raised == [KeyboardInterrupt]
        at += 1
    while SENDERS:
        SENDERS.pop().close()  # one whose closing was interrupted at its first step
    assert at > 1
    assert not raised
