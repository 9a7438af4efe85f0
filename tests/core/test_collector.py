"""The garbage collector pauses while modules are imported and tensors made, and is afterwards as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import streamer
from streamer.core.collector import NEVER, collector_paused, past_frozen


@pytest.fixture(autouse=True)
def _as_python_starts() -> Iterator[None]:
    gc.enable()
    gc.set_threshold(700, 10, 10)
    yield
    gc.enable()
    gc.set_threshold(700, 10, 10)


def test_the_collector_goes_on_after_an_error() -> None:
    def fail() -> None:
        with collector_paused():
            assert gc.get_threshold()[0] == NEVER
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
    with collector_paused(), collector_paused():
        gc.enable()
    assert gc.isenabled()


def test_a_threshold_of_0_is_off_and_stays() -> None:
    gc.set_threshold(0)
    with collector_paused(), collector_paused():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 10, 10)


def test_the_collector_stays_paused_until_the_last_of_several_threads() -> None:
    is_inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert is_inside.wait(10)
    assert gc.get_threshold()[0] == NEVER
    may_leave.set()
    thread.join(10)
    assert gc.get_threshold() == (700, 10, 10)


def test_the_first_load_collects_no_garbage(tmp_path: object) -> None:
    program = f"""
import gc, torch, safetensors.torch
safetensors.torch.save_file({{"a": torch.ones(3)}}, {str(tmp_path)!r} + "/a.safetensors")
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
import streamer
streamer.load({str(tmp_path)!r}, progress=False)
assert gc.isenabled()
assert not full, full
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_load_of_many_tensors_collects_only_between_its_waits(tmp_path: Path) -> None:
    """Before, every 700 new objects began a collection, and some collections went through the whole heap."""
    count = 30_000
    save_file({f"t{number}": np.zeros(1, np.uint8) for number in range(count)}, tmp_path / "model.safetensors")
    collections = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    gc.callbacks.append(note)
    try:
        tensors = streamer.load(tmp_path, progress=False)
    finally:
        gc.callbacks.remove(note)
    assert len(tensors) == count
    assert len(collections) < count / 700 / 2


def test_the_programs_thresholds_hold_while_a_load_waits(tmp_path: Path) -> None:
    save_file({f"t{number}": np.zeros(1, np.uint8) for number in range(5)}, tmp_path / "model.safetensors")
    before = gc.get_threshold()
    seen = []

    def note(*_: int) -> None:
        seen.append((gc.isenabled(), gc.get_threshold()))

    streamer.load(tmp_path, progress=note)
    assert set(seen) == {(True, before)}
    assert gc.get_threshold() == before


def test_thresholds_that_the_program_sets_meanwhile_stay() -> None:
    with collector_paused():
        gc.set_threshold(5, 6, 7)
        with collector_paused():
            assert gc.get_threshold()[1] == 6
    assert gc.get_threshold() == (5, 6, 7)


def test_a_program_that_restores_the_thresholds_of_a_load_has_its_own_again_after_the_next() -> None:
    with collector_paused():
        seen = gc.get_threshold()
    gc.set_threshold(*seen)
    with collector_paused():
        pass
    assert gc.get_threshold() == (700, 10, 10)


def test_a_forked_child_has_the_collector_as_it_was() -> None:
    """It paused in the child for ever: the thread that would have ended that is not there."""
    program = """
import gc, os
from streamer.core.collector import collector_paused
before = gc.get_threshold()
with collector_paused(), collector_paused():
    child = os.fork()
    assert (gc.get_threshold() == before) == (child == 0)
assert gc.get_threshold() == before
with collector_paused():
    assert gc.get_threshold() != before
assert gc.get_threshold() == before
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


class Circle:
    """Only the collector removes it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def _unfrozen() -> Iterator[None]:
    gc.unfreeze()  # the whole suite is frozen
    yield
    gc.freeze()


@pytest.mark.usefixtures("_unfrozen")
def test_what_is_garbage_already_is_removed_and_what_lives_is_passed_over_for_the_time() -> None:
    garbage, living = weakref.ref(Circle()), Circle()
    with past_frozen():
        assert garbage() is None
        reference, new = weakref.ref(living), weakref.ref(Circle())
        del living
        gc.collect()
        assert reference() is not None
        assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert reference() is None


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    with past_frozen():
        pass
    assert gc.get_freeze_count() > 0
