"""Loads and streams in an event loop: it goes on meanwhile, and a cancelled task ends what it waited for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import streamer
from streamer import _async
from streamer.plugins import ObjectInfo, PythonSource, Source

TENSORS = {f"t{number:03}": torch.full((1000,), float(number)) for number in range(600)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asyncio") / "model.safetensors"
    safetensors.torch.save_file(TENSORS, path)
    return path


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 30))


def no_thread_is_left() -> bool:
    """Wait for the threads of the engine and of `_async` to end."""
    until = time.monotonic() + 10
    while any(thread.name.startswith("streamer") for thread in threading.enumerate()):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_load_gives_what_load_gives(file: Path) -> None:
    loaded = run(lambda: streamer.aload(file))
    assert list(loaded) == list(streamer.load(file))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def test_a_stream_yields_every_tensor_once_and_has_a_report(file: Path) -> None:
    async def main() -> None:
        names = []
        async with streamer.astream(file, names="t0*", order="file") as tensors:
            async for name, tensor in tensors:
                assert torch.equal(tensor, TENSORS[name])
                names.append(name)
        assert names == [f"t{number:03}" for number in range(100)]
        assert tensors.report.is_complete
        assert [each async for each in tensors] == []

    run(main)


@pytest.mark.parametrize("step", [{"STEP_TENSORS": 1}, {"STEP_BYTES": 1}, {"STEP_TENSORS": 7}])
def test_a_step_is_small_and_none_is_lost(file: Path, monkeypatch: pytest.MonkeyPatch, step: dict[str, int]) -> None:
    for name, value in step.items():
        monkeypatch.setattr(_async, name, value)

    async def main() -> set[str]:
        return {name async for name, _ in streamer.astream(file)}

    assert run(main) == set(TENSORS)


def test_the_loop_has_its_turn_while_many_tensors_are_ready(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_async, "TURN_S", 0.0)

    async def main() -> int:
        turns, is_over = 0, False

        async def count() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        async for _ in streamer.astream(file):
            pass
        is_over = True
        await counting
        return turns

    assert run(main) >= len(TENSORS)


def test_the_report_of_what_has_not_started_is_refused(file: Path) -> None:
    with pytest.raises(streamer.UsageError, match="not started"):
        _ = streamer.astream(file).report


def test_errors_are_those_of_load(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(streamer.ObjectNotFoundError):
            await streamer.aload(tmp_path / "none.safetensors")
        with pytest.raises(streamer.ObjectNotFoundError):
            async with streamer.astream(tmp_path / "none.safetensors"):
                pass
        with pytest.raises(TypeError, match="devise"):
            await streamer.aload(tmp_path, devise="cpu")  # type: ignore[call-overload]

    run(main)


class Gate:
    """A storage whose data, or whose description, is held back until it is opened."""

    root = "/model.safetensors"

    def __init__(self, file: Path, *, holds_info: bool) -> None:
        self._data = file.read_bytes()
        self._holds_info = holds_info
        self.is_asked, self.is_open = threading.Event(), threading.Event()

    def info(self, path: str) -> ObjectInfo:
        if self._holds_info:
            self._wait()
        return ObjectInfo(path, f"gate://{path}", len(self._data))

    def find(self, prefix: str) -> list[ObjectInfo]:
        return []

    def source(self, info: ObjectInfo) -> Source:
        def read_into(buffer: memoryview, offset: int) -> int:
            if offset:
                self._wait()
            buffer[:] = self._data[offset : offset + len(buffer)]
            return len(buffer)

        return PythonSource(read_into)

    def close(self) -> None:
        pass

    def _wait(self) -> None:
        self.is_asked.set()
        assert self.is_open.wait(30)


@pytest.fixture(params=[False, True], ids=["while it reads", "while it is looked for"])
def gate(request: pytest.FixtureRequest, file: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    held = Gate(file, holds_info=request.param)
    monkeypatch.setattr("streamer._locate_shards.open_checked_store", lambda *_, **__: held)
    return held


SMALL_HEADER = streamer.Options(header_bytes=8, block_bytes=1 << 16, memory_limit_bytes=1 << 20)


async def _streamed() -> None:
    async for _ in streamer.astream("gate:///model.safetensors", options=SMALL_HEADER):
        pass


@pytest.mark.parametrize(
    "read",
    [lambda: streamer.aload("gate:///model.safetensors", options=SMALL_HEADER), _streamed],
    ids=["aload", "astream"],
)
def test_the_loop_goes_on_and_a_cancelled_task_ends_the_read(gate: Gate, read: Callable[[], Any]) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(read())
        while not gate.is_asked.is_set():
            await asyncio.sleep(0.001)  # the loop is free, else this never ends
        task.cancel()
        gate.is_open.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    assert no_thread_is_left()


def test_a_deadline_of_the_callers_ends_it_too(file: Path) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(streamer.aload(file, progress=lambda *_: time.sleep(0.2)), 0.1)

    run(main)
    assert no_thread_is_left()


def test_leaving_the_loop_early_and_the_block_cancels_the_rest(file: Path) -> None:
    async def main() -> None:
        async with streamer.astream(file) as tensors:
            async for _ in tensors:
                break
        assert not tensors.report.is_complete

    run(main)
    assert no_thread_is_left()


def test_several_loads_run_at_the_same_time(file: Path) -> None:
    async def main() -> list[dict[str, torch.Tensor]]:
        return await asyncio.gather(*(streamer.aload(file, names=f"t{number}*") for number in range(6)))

    assert [len(each) for each in run(main)] == [100] * 6


@pytest.mark.parametrize("call", [streamer.aload, lambda path: anext(aiter(streamer.astream(path)))])
def test_a_refused_thread_is_an_error_of_ours_and_the_next_load_works_regression(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], Any]
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(streamer.OutOfMemoryError, match=r"no thread\. Raise the limit of threads"):
            asyncio.run(call(file))
    assert run(lambda: streamer.aload(file)).keys() == TENSORS.keys()
