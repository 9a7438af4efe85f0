"""The path of accelerators that only torch reaches. Its streams and events are a stand-in: no such device is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import streamer
from streamer.core.tensors.torch_copies import StagedCopy, TorchStaging

SMALL = streamer.Options(block_bytes=64 << 10, memory_limit_bytes=4 << 20)


class FakeXpu:
    """``torch.xpu`` with streams that write down what is done to them, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        log = self.log

        class Stream:
            def __init__(self, device: object) -> None:
                log.append(f"make stream on {device}")

            def wait_stream(self, other: str) -> None:
                log.append(f"wait for {other}")

        class Event:
            def record(self, stream: object) -> None:
                log.append("record")

            def synchronize(self) -> None:
                log.append("synchronize")

        self.Stream, self.Event = Stream, Event

    def current_stream(self, device: object) -> str:
        return f"current of {device}"

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.log.append("enter")
        yield
        self.log.append("leave")


def fake_torch(xpu: FakeXpu) -> Any:
    def empty(shape: Any, *, dtype: Any, device: Any = None, pin_memory: bool = False) -> Any:
        if pin_memory:
            xpu.log.append("pin")
        return torch.empty(shape, dtype=dtype)

    return SimpleNamespace(empty=empty, xpu=xpu, mps=SimpleNamespace(Event=object))


def test_a_copy_waits_for_the_current_stream_and_its_tensor_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    xpu = FakeXpu()
    recorded: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, stream: recorded.append(stream))
    staging = TorchStaging(fake_torch(xpu))
    device = torch.device("xpu", 0)
    source = staging.pinned((3,), torch.float32).fill_(5)
    copy = staging.start(source, device)
    assert torch.equal(staging.finish(copy), torch.full((3,), 5.0))
    staging.start(source, device)
    first = ["wait for current of xpu:0", "enter", "record", "leave"]
    assert xpu.log == ["pin", "make stream on xpu:0", *first, "synchronize", *first]
    assert len(recorded) == 2


def test_only_devices_with_streams_and_events_are_staged() -> None:
    assert TorchStaging(fake_torch(FakeXpu())).can_copy_to(torch.device("xpu"))
    assert not TorchStaging(fake_torch(FakeXpu())).can_copy_to(torch.device("mps"))
    assert not TorchStaging(fake_torch(FakeXpu())).can_copy_to(torch.device("hpu"))


def test_plain_memory_is_used_if_none_can_be_pinned() -> None:
    def empty(shape: Any, *, dtype: Any, device: str, pin_memory: bool = False) -> Any:
        if pin_memory:
            raise RuntimeError("Need to provide pin_memory allocator to use pin memory.")
        return torch.empty(shape, dtype=dtype, device=device)

    assert TorchStaging(SimpleNamespace(empty=empty)).pinned((4,), torch.int8).shape == (4,)


class LateStaging(TorchStaging):
    """Copies only when it is waited for: a tensor handed out earlier would be wrong."""

    in_flight = 0
    most_in_flight = 0
    fails = False

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty(shape, dtype=dtype)

    def start(self, source: Any, device: Any) -> StagedCopy:
        assert device.type == "xpu"
        if LateStaging.fails:
            raise RuntimeError("XPU out of memory. Tried to allocate 1 GiB")
        LateStaging.in_flight += 1
        LateStaging.most_in_flight = max(LateStaging.most_in_flight, LateStaging.in_flight)
        return StagedCopy(torch.zeros_like(source), None, source)

    def finish(self, copy: StagedCopy) -> Any:
        LateStaging.in_flight -= 1
        return copy.tensor.copy_(copy.source)


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.core.tensors.torch_copies.probe", lambda _torch, _device: None)
    monkeypatch.setattr("streamer.core.tensors.torch_copies.TorchStaging.can_copy_to", lambda _self, _device: True)
    monkeypatch.setattr("streamer.core.tensors.torch_copies.TorchStaging", LateStaging)
    for name, value in (("in_flight", 0), ("most_in_flight", 0), ("fails", False)):
        monkeypatch.setattr(LateStaging, name, value)


def test_a_checkpoint_reaches_such_a_device_whole_with_copies_beside_each_other(xpu: None, checkpoint: Path) -> None:
    with streamer.stream(checkpoint, device="xpu", options=SMALL, progress=False) as tensors:
        loaded = dict(tensors)
    for file in checkpoint.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert torch.equal(loaded[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), name
    assert LateStaging.in_flight == 0
    assert LateStaging.most_in_flight > 1
    assert tensors.report.device_path == "torch"
    assert tensors.report.peak_held_bytes <= (4 << 20) + max(tensor.nbytes for tensor in loaded.values())


def test_a_full_device_of_the_engine_is_reported_with_the_bytes(xpu: None, checkpoint: Path) -> None:
    LateStaging.fails = True
    with pytest.raises(streamer.DeviceError, match=r"xpu could not take tensor .* bytes asked for.*out of memory"):
        streamer.load(checkpoint, device="xpu", options=SMALL, progress=False)
