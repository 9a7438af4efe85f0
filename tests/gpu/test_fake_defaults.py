"""What a load to a device uses by itself, for as many processors as a container may have: readers and pinned memory."""

from __future__ import annotations

import json
import re
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

import streamer
from gpu.fake_devices import FakeGpu
from streamer.core.engine import tuning

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
