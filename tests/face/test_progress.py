"""Whatever shows the progress of a load, or fails to, the load goes on."""

from __future__ import annotations

import io
import logging
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tqdm.auto import tqdm

import streamer
from streamer import _progress


class WithoutIsatty:
    def write(self, text: str) -> int:
        return len(text)


class Full(io.StringIO):
    """A terminal that takes nothing."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(8), "b": np.arange(4)}, path)
    return path


def load(path: Path, progress: Any = None) -> None:
    tensors = streamer.load(path, framework="np", progress=progress)
    assert tensors["a"].tolist() == list(range(8))


@pytest.mark.parametrize("option", [None, True])
@pytest.mark.parametrize("stderr", [None, WithoutIsatty(), closed(), Full()], ids=["none", "plain", "closed", "full"])
def test_no_state_of_stderr_ends_a_load(
    checkpoint: Path, option: Any, stderr: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "SHOWN_AFTER_S", 0)
    monkeypatch.setattr(sys, "stderr", stderr)
    load(checkpoint, option)


@pytest.mark.parametrize("stderr", [closed(), Full()], ids=["closed", "full"])
def test_a_bar_that_cannot_be_written_keeps_no_lock_regression(
    checkpoint: Path, stderr: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "SHOWN_AFTER_S", 0)
    monkeypatch.setattr(sys, "stderr", stderr)
    load(checkpoint, progress=True)
    took = []

    def take_lock() -> None:
        with tqdm.get_lock():
            took.append(True)

    thread = threading.Thread(target=take_lock, daemon=True)
    thread.start()
    thread.join(10.0)
    assert took


def test_a_callback_that_raises_is_logged_and_not_called_again(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fail(done: int, total: int) -> None:
        calls.append((done, total))
        raise ValueError("no such widget")

    load(checkpoint, fail)
    assert len(calls) == 1
    assert "no longer shown: ValueError('no such widget')" in caplog.text


@pytest.mark.parametrize("error", [streamer.LoadCancelledError("enough"), KeyboardInterrupt()], ids=["ours", "Ctrl-C"])
def test_a_function_can_end_the_load_on_purpose(checkpoint: Path, error: BaseException) -> None:
    def stop(_done: int, _total: int) -> None:
        raise error

    with pytest.raises(type(error)):
        load(checkpoint, stop)


def test_the_log_shows_the_progress_without_a_terminal(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="streamer")
    load(checkpoint)
    assert "B in 0 s" not in caplog.text  # it took no ten seconds
    monkeypatch.setattr(_progress, "LOGGED_EVERY_S", 0)
    load(checkpoint)
    assert f"{checkpoint}: 96.0 B of 96.0 B in 0 s" in caplog.text


def test_a_notebook_gets_a_bar_although_it_is_no_terminal(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(_progress, "SHOWN_AFTER_S", 0)
    load(checkpoint)
    assert "100%" in capsys.readouterr().err


def test_a_long_label_leaves_room_for_the_numbers_of_the_bar_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(_progress, "SHOWN_AFTER_S", 0)
    bar = _progress._Bar(100_000_000, f"s3://bucket/{'deep/' * 40}model.safetensors")
    bar.update(43_000_000)
    bar.note("")
    bar.close()
    lines = terminal.getvalue().split("\r")
    assert any("model.safetensors: " in line and "43.0M/100M" in line and len(line) <= 80 for line in lines), lines
