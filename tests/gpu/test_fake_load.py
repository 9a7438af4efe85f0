"""Loads to CUDA devices through the real engine and the fake driver; see fake_devices.py for what is fake."""

from __future__ import annotations

import json
import os
import re
import struct
import time
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from comparison import assert_same, tensors_of
from make_checkpoint import make_checkpoint
from safetensors.torch import save_file
from servers.nginx import NginxServer

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from streamer import _native
from streamer.core.engine import tuning
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.device_tensors import DeviceTensors
from streamer.core.tensors.frameworks import framework_of

SMALL = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 1)], ids=str)
def test_a_checkpoint_reaches_the_device_whole(fake_gpu: FakeGpu, checkpoint: Path, device: object) -> None:
    fake_gpu.set_copy_delay_us(50)
    index = torch.device(device).index or 0
    fake_gpu.place_everything(index)
    loaded = streamer.load(checkpoint, device=device, options=SMALL, progress=False)
    assert_same(loaded, tensors_of(checkpoint))
    assert all(
        FakeTorchCuda.placed[tensor.data_ptr()] == (torch.device(device).index or 0) for tensor in loaded.values()
    )


def test_a_small_ring_after_a_large_one_regression(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    expected = tensors_of(checkpoint)
    for options in (streamer.Options(), SMALL, streamer.Options(), streamer.Options(pinned_bytes=1 << 20)):
        assert_same(streamer.load(checkpoint, device="cuda", options=options, progress=False), expected)


def test_a_checkpoint_over_http_reaches_the_device(
    fake_gpu: FakeGpu, http_server: NginxServer, checkpoint: Path
) -> None:
    url = f"{http_server.http_url}/open/model"
    assert_same(streamer.load(url, device="cuda", options=SMALL, progress=False), tensors_of(checkpoint))


def test_a_checkpoint_over_nfs_reaches_the_device(fake_gpu: FakeGpu, nfs_checkpoint: str, checkpoint: Path) -> None:
    assert_same(streamer.load(nfs_checkpoint, device="cuda", options=SMALL, progress=False), tensors_of(checkpoint))


def test_a_checkpoint_read_by_python_reaches_the_device(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(checkpoint), "/gpu-model", recursive=True)
    try:
        loaded = streamer.load("memory://gpu-model", device="cuda", options=SMALL, progress=False)
        assert_same(loaded, tensors_of(checkpoint))
    finally:
        memory.rm("/gpu-model", recursive=True)


def test_the_report_says_which_way_the_bytes_took(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    with streamer.stream(checkpoint, device="cuda", options=SMALL, progress=False) as tensors:
        for _ in tensors:
            pass
    assert tensors.report.device_path == "ring"
    assert 0 < tensors.report.peak_pinned_bytes <= 1 << 20
    assert tensors.report.remarks == ()
    with streamer.stream(checkpoint, options=SMALL, progress=False) as tensors:
        for _ in tensors:
            pass
    assert (tensors.report.device_path, tensors.report.peak_pinned_bytes) == ("", 0)


def test_a_consumer_that_drops_tensors_never_holds_the_model_on_the_device(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    limit = 4 << 20
    options = streamer.Options(block_bytes=64 << 10, pinned_bytes=1 << 20, memory_limit_bytes=limit)
    make_checkpoint(tmp_path, total_bytes=5 * limit)
    with streamer.stream(tmp_path, device="cuda", options=options, progress=False, order="file") as tensors:
        for _ in tensors:
            pass
    assert tensors.total_bytes > 4 * limit
    largest = max(tensor.nbytes for tensor in tensors_of(tmp_path).values())
    assert tensors.report.peak_held_bytes <= limit + largest


def test_empty_tensors_are_on_the_device_too(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    save_file({"empty": torch.empty(0, 3), "full": torch.ones(3)}, tmp_path / "a.safetensors")
    loaded = streamer.load(tmp_path / "a.safetensors", device="cuda", progress=False)
    assert loaded["empty"].shape == (0, 3)
    assert torch.equal(loaded["full"], torch.ones(3))


def test_the_callers_tensors_are_filled_in_place_whatever_their_layout(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    expected = {name: torch.randn(8, 6) for name in ("plain", "view", "strided", "tied")}
    expected["tied"] = expected["plain"]
    save_file({name: tensor.clone() for name, tensor in expected.items()}, tmp_path / "a.safetensors")
    storage = torch.zeros(20, 6)
    plain = torch.zeros(8, 6)
    targets = {"plain": plain, "view": storage[4:12], "strided": torch.zeros(6, 8).t(), "tied": plain}
    for tensor in targets.values():
        fake_gpu.place(tensor, 0)
    report = streamer.load_into(tmp_path / "a.safetensors", targets, options=SMALL, progress=False)
    for name, tensor in targets.items():
        assert torch.equal(tensor, expected[name]), name
    assert torch.equal(storage[:4], torch.zeros(4, 6))
    assert report.device_path == "ring"


def test_a_cast_happens_on_the_device_and_spares_what_is_not_a_float(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    stored = {"half": torch.randn(5).half(), "count": torch.arange(5), "brain": torch.randn(5).bfloat16()}
    save_file(stored, tmp_path / "a.safetensors")
    loaded = streamer.load(tmp_path / "a.safetensors", device="cuda", progress=False, dtype=torch.float32)
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        "half": torch.float32,
        "count": torch.int64,
        "brain": torch.float32,
    }
    assert torch.equal(loaded["brain"], stored["brain"].float())
    target = {"half": torch.zeros(5)}
    fake_gpu.place(target["half"], 0)
    streamer.load_into(tmp_path / "a.safetensors", target, strict=False, names="half", dtype="float32", progress=False)
    assert torch.equal(target["half"], stored["half"].float())


def test_a_mapping_spreads_a_checkpoint_over_devices(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    stored = {f"layers.{i}.weight": torch.full((100,), float(i)) for i in range(4)} | {"head": torch.ones(5)}
    save_file(stored, tmp_path / "a.safetensors")
    device = {"": "cpu", "layers": "cuda", "head": "cuda:0", "layers.2": "cpu"}
    with streamer.stream(tmp_path / "a.safetensors", device=device, progress=False) as tensors:
        loaded = dict(tensors)
    assert_same(loaded, stored)
    on_device = {name for name, tensor in loaded.items() if tensor.data_ptr() in FakeTorchCuda.placed}
    assert on_device == {"layers.0.weight", "layers.1.weight", "layers.3.weight", "head"}


def test_a_tensor_handed_out_on_another_stream_is_recorded_there(fake_gpu: FakeGpu, monkeypatch) -> None:
    assert _native.cuda_open(0) is None  # as a load does before it allocates
    entry = TensorEntry("a", "F32", (4,), 0, 16)
    tensors = DeviceTensors([entry, entry], [0, 0], framework_of("pt", "cuda"))
    (provision,) = tensors.allocate([0, 1])
    assert (provision.device, provision.stream, provision.items) == (0, 0, [0, 1])
    same = tensors.take(0)
    monkeypatch.setattr(FakeTorchCuda, "current_stream", 42)
    other = tensors.take(1)
    assert FakeTorchCuda.recorded == [(other.data_ptr(), 42)]
    assert same.data_ptr() == provision.addresses[0]


def test_the_ring_serves_the_next_load_until_it_is_released(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    for _ in range(4):
        streamer.load(checkpoint, device="cuda", options=SMALL, progress=False)
    pinned = fake_gpu.pinned_bytes()
    assert 0 < pinned <= 1 << 20
    assert fake_gpu.calls("cuMemHostRegister_v2") <= 3  # several slots at once, and none of them again
    assert streamer.release_pinned_memory() == pinned
    assert fake_gpu.pinned_bytes() == 0
    assert streamer.release_pinned_memory() == 0


def test_leaving_a_stream_early_waits_for_copies_and_ends_within_a_second(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    fake_gpu.set_copy_delay_us(2_000)
    for leave_after in range(1, 6):
        with streamer.stream(checkpoint, device="cuda", options=SMALL, progress=False) as tensors:
            for _ in range(leave_after):
                next(tensors)
            began = time.monotonic()
        assert time.monotonic() - began < 10
        assert fake_gpu.pinned_in_use() == 0


def test_a_stream_closed_early_hands_out_nothing_more(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    tensors = streamer.stream(checkpoint, device="cuda", options=SMALL, progress=False)
    name, tensor = next(tensors)
    assert bytes_of(tensor) == bytes_of(tensors_of(checkpoint)[name])
    tensors.close()
    with pytest.raises(streamer.LoadCancelledError):
        next(tensors)
    assert fake_gpu.pinned_in_use() == 0


def test_no_capture_minds_a_load_and_its_threads_mode_is_as_before_regression(
    fake_gpu: FakeGpu, checkpoint: Path
) -> None:
    thread_local = 1
    fake_gpu.exchange_capture_mode(thread_local)
    streamer.load(checkpoint, device="cuda", options=SMALL, progress=False)
    streamer.release_pinned_memory()
    assert fake_gpu.exchange_capture_mode(0) == thread_local
    assert fake_gpu.violations() == 0


def test_the_error_in_a_forked_child_advises_spawn(fake_gpu: FakeGpu, checkpoint: Path) -> None:
    streamer.load(checkpoint, device="cuda", options=SMALL, progress=False)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        refusal = _native.cuda_open(0)
        os.write(writer, (refusal.detail if refusal else "opened").encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    os.close(writer)
    assert said == "CUDA was used before this process was forked; start processes with the spawn method"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["dcp", "safetensors"])
def test_a_load_plan_of_torch_fills_tensors_on_the_device(fake_gpu: FakeGpu, tmp_path: Path, kind: str) -> None:
    stored = {name: torch.randn(600, 512) for name in "abc"}
    if kind == "dcp":
        dcp.save(stored, checkpoint_id=tmp_path)
    else:
        save_file(stored, tmp_path / "model.safetensors")
    targets = {name: fake_gpu.place(torch.zeros(600, 512), number % 2) for number, name in enumerate(stored)}
    reader = streamer.dcp.StorageReader(tmp_path, options=SMALL)
    dcp.load(targets, storage_reader=reader)
    for name, tensor in targets.items():
        assert torch.equal(tensor, stored[name]), name
    assert reader.report is not None
    assert reader.report.device_path == "ring"


# --- what a load to a device uses by itself, for as many processors as a container may have: readers and pinne ---

MIB = 1 << 20
TENSOR_BYTES, TENSORS = 8 * MIB, 40  # more than the ring, and a block each


@pytest.fixture(scope="module")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one hole, which takes no room on the disk and is read at the speed of memory."""
    header = {
        f"{number:02d}": {
            "dtype": "U8",
            "shape": [TENSOR_BYTES],
            "data_offsets": [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES],
        }
        for number in range(TENSORS)
    }
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("zeros") / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + TENSOR_BYTES * TENSORS)
    return path


def readers() -> set[str]:
    names: set[str] = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread that ends meanwhile has no file any more
            names.add(path.read_text().strip())
    return {name for name in names if re.fullmatch(r"streamer-file\d+", name)}


@pytest.mark.parametrize(("processors", "expected"), [(2, 3), (4, 5), (16, 12), (192, 16)])
def test_readers_leave_processors_to_the_device_and_the_ring_is_bounded(
    fake_gpu: FakeGpu, zeros: Path, monkeypatch: pytest.MonkeyPatch, processors: int, expected: int
) -> None:
    monkeypatch.setattr(tuning, "processors", lambda: processors)
    monkeypatch.setattr(tuning, "cached_fractions", lambda sizes: dict.fromkeys(sizes, 1.0))
    fake_gpu.set_copy_delay_us(5_000)  # the device is slower than the readers, and the ring fills
    streamer.release_pinned_memory()
    seen: set[str] = set()
    with streamer.stream(zeros, device="cuda:0") as tensors:
        latest = time.monotonic() + 20
        while len(seen) < expected and time.monotonic() < latest:  # a busy machine starts them one after the other
            seen |= readers()
        for _ in tensors:
            seen |= readers()
    assert len(seen) == expected
    assert 0 < tensors.report.peak_pinned_bytes <= 256 * MIB
