"""Load from a store as slow as S3 to the CPU and to a fake CUDA device, to measure what the way to a device costs.

    make test-packages && python benchmarks/bench_fake_device.py [--rounds 7] [--bytes N]

Guarantees: the engine's whole GPU pipeline runs (pinned slots, streams, events, copies), with the fake driver of
`tests/gpu/fake_driver`. The fake device's memory is memory of this machine. All of it is touched before the clock runs,
because a real device has no page faults. In the row `cuda` a processor does the copies, and every byte is compared. In
the row `link` copies take the time of a PCIe 4 link and no processor, as with a device's own copy engine. These copies
move nothing, so no bytes are compared. Each run is a fresh process. The goal is a difference of 5 % at most.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkpoint import make_or_reuse
from measure import MASK, Measurement, tensor_digest, touch_and_free
from paced_origin import Pace, PacedOrigin

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
DEVICES = ("cpu", "cuda", "link")
LINK_MB_PER_S = 25_000  # the speed of copies from pinned memory over PCIe 4 x16
ALIGNMENT = 512  # of tensors, as in torch's allocator


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the checkpoint (default 2 GiB)")
    parser.add_argument("--child", choices=DEVICES, help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.child:
        print(json.dumps(figures_of(arguments.child, arguments.bytes, *rest)))
        return
    shards = make_or_reuse((HERE.parent / ".bench" / f"model-{arguments.bytes}").resolve(), arguments.bytes, 4)
    runs: dict[str, list[dict[str, Any]]] = {device: [] for device in DEVICES}
    with tempfile.TemporaryDirectory() as folder, PacedOrigin(shards[0].parents[1], Pace()) as origin:
        driver = compiled_driver(Path(folder))
        urls = [f"s3://{path.parent.name}/{path.name}" for path in shards]
        for number in range(arguments.rounds):
            for device in DEVICES[:: -1 if number % 2 else 1]:
                own = ["--child", device, "--bytes", str(arguments.bytes)]
                command = [sys.executable, __file__, *own, str(driver), origin.http_url, *urls]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                runs[device].append(json.loads(done.stdout))
    compared = [(run["bytes"], run["digest"]) for device in ("cpu", "cuda") for run in runs[device]]
    if len(set(compared)) != 1 or {run["bytes"] for run in runs["link"]} != {compared[0][0]}:
        raise SystemExit("not all runs gave the same tensors")
    speeds = {device: [run["bytes"] / run["seconds"] / 1e9 for run in own] for device, own in runs.items()}
    for device, own in speeds.items():
        cpu = statistics.median(run["cpu_seconds"] / run["bytes"] * 1e9 for run in runs[device])
        middle, best = statistics.median(own), max(own)
        print(f"{device:5} median {middle:5.2f}  best {best:5.2f}  min {min(own):5.2f} GB/s  {cpu:5.2f} CPU-s/GB")
    for device in DEVICES[1:]:
        ratios = [function(speeds[device]) / function(speeds["cpu"]) for function in (statistics.median, max)]
        print(f"{device}: {ratios[0]:.2f} of the CPU by the medians, {ratios[1]:.2f} by the bests")


def compiled_driver(folder: Path) -> Path:
    """Compile the fake driver as the tests do."""
    sys.path.insert(0, str(TESTS))
    from gpu.fake_devices import compile_fake

    return compile_fake("fake_cuda", folder)


def figures_of(device: str, touch_bytes: int, driver: str, endpoint: str, *urls: str) -> dict[str, Any]:
    """Load once in this process; return the measured figures."""
    sys.path.insert(0, str(TESTS))
    from gpu.fake_devices import FakeTorchCuda, attached_fake_gpu

    import streamer

    how: dict[str, Any] = {
        "storage_options": {"key": "key", "secret": "secret", "endpoint_url": endpoint},
        "progress": False,
        "device": "cpu" if device == "cpu" else "cuda",
    }
    with attached_fake_gpu(Path(driver)) as gpu:
        gpu.place_everything(0)
        if device == "link":
            gpu.set_link_mb_per_s(LINK_MB_PER_S)
        if device != "cpu":
            memory = DeviceMemory(int(touch_bytes * 1.1))
            FakeTorchCuda.empty = lambda _, shape, dtype, index: FakeTorchCuda.place(memory.take(shape, dtype), index)
        touch_and_free(touch_bytes, huge_pages=True)  # last, so that pinned memory and tensors are equally warm
        with Measurement() as measured:
            loaded = streamer.load(list(urls), **how)
        on_device = sum(tensor.data_ptr() in FakeTorchCuda.placed for tensor in loaded.values())
        assert on_device == (0 if device == "cpu" else len(loaded)), "tensors are on the wrong device"
        digests = [tensor_digest(name, tensor) for name, tensor in loaded.items()]
        del loaded
    size_bytes, digest = (sum(column) & MASK for column in zip(*digests, strict=True))
    return {"bytes": size_bytes, "digest": digest, **measured.to_dict()}


class DeviceMemory:
    """The memory of the fake device: one mapping, already touched, from which tensors get pieces."""

    def __init__(self, size_bytes: int) -> None:
        import torch

        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
        self._all = torch.frombuffer(mapping, dtype=torch.uint8).zero_()
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the next piece, as a tensor."""
        import torch

        size_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
        begin = self._taken
        self._taken += -(-size_bytes // ALIGNMENT) * ALIGNMENT
        return self._all[begin : begin + size_bytes].view(dtype).view(shape)


if __name__ == "__main__":
    main()
