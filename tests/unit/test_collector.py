"""The garbage collector pauses while modules are imported and tensors made, and is afterwards as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import streamer
from streamer.core.collector import collector_paused


@pytest.fixture(autouse=True)
def _collector_is_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_the_collector_goes_on_after_an_error() -> None:
    def fail() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_it_stays_paused_until_the_last_of_several_threads() -> None:
    is_inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert is_inside.wait(10)
    assert not gc.isenabled()
    may_leave.set()
    thread.join(10)
    assert gc.isenabled()


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
    """Each 700 new objects began a collection, and some of them went through all that the program holds."""
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
