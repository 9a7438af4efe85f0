"""Measure loads of a checkpoint with very many tiny tensors: the import, the header, and the delivery of each tensor.

    python benchmarks/bench_many_tensors.py [--tensors 100000] [--rounds 5]

Guarantees: every tensor is delivered, and its bytes are compared outside the measured sections. Prints the best and the
median of each figure, and those of safetensors' own reader.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TENSOR_BYTES = 64


def write_checkpoint(path: Path, count: int) -> None:
    entries = {
        f"model.layers.{i // 100}.mlp.experts.{i % 100}.weight": {
            "dtype": "BF16",
            "shape": [4, 8],
            "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
        }
        for i in range(count)
    }
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + os.urandom(count * TENSOR_BYTES))


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import streamer; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def measure(path: Path) -> dict[str, float]:
    import safetensors.torch
    import torch

    import streamer

    torch.zeros(1)
    started = time.perf_counter()
    stream = streamer.stream(path, progress=False)
    opened = time.perf_counter()
    ours = dict(stream)
    delivered = time.perf_counter()
    reference = safetensors.torch.load_file(path)
    theirs = time.perf_counter() - delivered
    wrong = [
        name
        for name, tensor in reference.items()
        if not torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8))
    ][:3]
    if wrong or len(ours) != len(reference):
        raise SystemExit(f"not equal: {wrong}")
    count = len(ours)
    return {
        "open, header and all (s)": opened - started,
        "the header's part of this (s)": stream.report.stages["headers"],
        "deliver a tensor (us)": (delivered - opened) / count * 1e6,
        "safetensors.load_file, a tensor, header and all (us)": theirs / count * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.safetensors"
        write_checkpoint(path, arguments.tensors)
        for _ in range(arguments.rounds):
            for name, figure in {"import streamer (s)": import_seconds(), **measure(path)}.items():
                figures.setdefault(name, []).append(figure)
    print(f"{arguments.tensors} tensors of {TENSOR_BYTES} bytes, {arguments.rounds} rounds")
    for name, found in figures.items():
        print(f"{name:56}best {min(found):8.3f}  median {statistics.median(found):8.3f}")


if __name__ == "__main__":
    main()
