"""What closing a load to a device frees, and when: never while a copy may still write it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from streamer import _native
from streamer.core.engine import session, session_end
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.device_tensors import DeviceTensors
from streamer.core.tensors.frameworks import framework_of

FOUR_SLOTS = streamer.Options(block_bytes=256 << 10, pinned_bytes=1 << 20)


def wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def silent_gpu(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A device that takes copies and makes none before the test is over; once it has some, a load gives up."""
    engines: list[Any] = []  # the fake's streams wait when they are destroyed, which the real ones do not
    real = session.make_engine

    def make_engine(*asked: Any) -> Any:
        engines.append(real(*asked))
        return engines[-1]

    def give_up(_session: object) -> None:
        if fake_gpu.copies_under_way():
            raise streamer.TransferTimeoutError("the device does not answer")

    monkeypatch.setattr(session, "make_engine", make_engine)
    monkeypatch.setattr(session.ReadSession, "_check_deadline", give_up)
    monkeypatch.setattr(session_end, "_LEFT_TO_DEVICES", type(session_end._LEFT_TO_DEVICES)())
    fake_gpu.hold_copies(True)
    yield fake_gpu
    fake_gpu.hold_copies(False)
    wait_until(lambda: not fake_gpu.copies_under_way())
    engines.clear()
    fake_gpu.forget_pinned()


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Every tensor that torch was asked for on a device."""
    made: list[weakref.ref[Any]] = []
    real = FakeTorchCuda.empty

    def empty(cuda: FakeTorchCuda, *asked: Any) -> Any:
        tensor = real(cuda, *asked)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(FakeTorchCuda, "empty", empty)
    return made


def test_tensors_that_a_device_may_still_write_are_never_freed_regression(
    silent_gpu: FakeGpu, checkpoint: Path, allocated: list[weakref.ref[Any]]
) -> None:
    stream = streamer.stream(checkpoint, device="cuda", options=FOUR_SLOTS, progress=False)
    with pytest.raises(streamer.TransferTimeoutError):
        next(stream)
    stream.close()
    assert silent_gpu.copies_under_way() > 0
    assert allocated
    assert all(tensor() is not None for tensor in allocated)
    del stream
    gc.collect()
    assert all(tensor() is not None for tensor in allocated)


def test_targets_that_a_device_may_still_write_stay_when_their_owner_drops_them(
    silent_gpu: FakeGpu, tmp_path: Path
) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "a.safetensors")
    target = silent_gpu.place(torch.zeros(1000), 0)
    with pytest.raises(streamer.TransferTimeoutError):
        streamer.load_into(tmp_path / "a.safetensors", {"a": target}, options=FOUR_SLOTS, progress=False)
    address = target.data_ptr()
    del target
    kept = [tensor for (in_place, *_) in session_end._LEFT_TO_DEVICES.values() for tensor in in_place.values()]  # type: ignore[misc, attr-defined]
    assert [tensor.data_ptr() for tensor in kept] == [address]


def test_each_of_two_threads_that_close_returns_after_the_last_copy_regression(
    fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    save_file({"a": torch.ones(2 << 20)}, tmp_path / "a.safetensors")  # one copy for each block
    fake_gpu.set_copy_delay_us(40_000)
    stream = streamer.stream(tmp_path / "a.safetensors", device="cuda", options=FOUR_SLOTS, progress=False)
    under_way: list[int] = []
    together = threading.Barrier(2)

    def consume() -> None:
        with pytest.raises(streamer.LoadCancelledError):
            dict(stream)

    def close() -> None:
        together.wait()
        stream.close()
        under_way.append(fake_gpu.copies_under_way())

    consumer = threading.Thread(target=consume)
    consumer.start()
    wait_until(lambda: fake_gpu.copies_under_way() >= 3)
    closers = [threading.Thread(target=close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in (*closers, consumer):
        thread.join(20)
    assert under_way == [0, 0]


@pytest.mark.parametrize("device", [0, _native.CONSUMERS_HOST], ids=["cuda", "staged"])
def test_a_tensor_freed_by_another_thread_is_not_replaced_by_garbage_regression(fake_gpu: FakeGpu, device: int) -> None:
    assert _native.cuda_open(0) is None  # as a load does before it allocates
    tensors = DeviceTensors([TensorEntry("a", "F32", (4,), 0, 16)], [device], framework_of("pt", "cuda"))
    tensors.allocate([0])
    tensors.free_all()
    with pytest.raises(streamer.LoadCancelledError):
        tensors.take(0)
