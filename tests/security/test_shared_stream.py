"""Two threads on one stream: the second is told so, and nothing of the first one's read is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer


def test_the_second_thread_that_reads_a_stream_is_refused_and_the_first_gets_everything(tmp_path: Path) -> None:
    expected = {name: torch.full((1000,), value) for name, value in (("a", 1.0), ("b", 2.0))}
    save_file(expected, tmp_path / "model.safetensors")
    is_reading, may_go_on = threading.Event(), threading.Event()

    def hold(_done: int, _total: int) -> None:
        is_reading.set()
        assert may_go_on.wait(60)

    stream = streamer.stream(tmp_path, progress=hold)
    with stream, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: dict(stream))
        try:
            assert is_reading.wait(60)
            with pytest.raises(streamer.UsageError, match="read by another thread"):
                next(stream)
        finally:
            may_go_on.set()
        loaded = first.result(60)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_progress_callback_that_reads_its_own_stream_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1000)}, tmp_path / "model.safetensors")
    stream = streamer.stream(tmp_path, progress=lambda *_: next(stream))
    with stream, pytest.raises(streamer.UsageError, match="its own progress callback"):
        next(stream)


def test_a_stream_that_another_thread_closes_was_closed_and_is_not_broken_regression(tmp_path: Path) -> None:
    """It was told as "delivered without its bytes", a fault of the engine."""
    save_file({f"t{number}": torch.zeros(10) for number in range(3000)}, tmp_path / "model.safetensors")
    with streamer.stream(tmp_path, progress=False) as stream:
        taken = stream._session.take_all

        def close_then_take(items: list[int]) -> object:
            if 100 in items:
                closing = threading.Thread(target=stream.close)
                closing.start()
                closing.join()
            return taken(items)

        stream._session.take_all = close_then_take
        with pytest.raises(streamer.LoadCancelledError):
            dict(stream)
