"""Measure what a trace costs a load, as a ratio in one run: many tiny tensors, and large ones, from the page cache.

    python benchmarks/bench_trace.py [--rounds 11] [--tensors 100000] [--gib 3]

Each load has a process of its own, with and without a trace in turn; the time includes writing the file. Prints the
medians and their ratio, that of processor time, and the size of the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_many_tensors import write_checkpoint
from safetensors.numpy import save_file

LOAD = """
import sys, time, torch, streamer
path, trace, first = sys.argv[1:]
options = streamer.Options(trace=trace or None)
streamer.load(first, options=options, progress=False)  # imports, threads and fresh memory are not measured
cpu, began = time.process_time(), time.perf_counter()
tensors = streamer.load(path, options=options, progress=False)
print(time.perf_counter() - began, time.process_time() - cpu)
"""


def measured(path: Path, trace: Path | str, first: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", LOAD, path, trace, first]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    seconds, cpu_seconds = map(float, done.stdout.split())
    return seconds, cpu_seconds


def compare(title: str, path: Path, rounds: int, first: Path) -> None:
    trace = path.parent / "trace.json"
    without, traced = [], []
    for _ in range(rounds):
        without.append(measured(path, "", first))
        trace.unlink(missing_ok=True)
        traced.append(measured(path, trace, first))
    medians = [[statistics.median(each) for each in zip(*found, strict=True)] for found in (without, traced)]
    (wall, cpu), (traced_wall, traced_cpu) = medians
    of_wall = f"{wall:.3f} s, with a trace {traced_wall:.3f} s ({traced_wall / wall - 1:+.1%})"
    of_cpu = f"processor {cpu:.3f} s, with it {traced_cpu:.3f} s ({traced_cpu / cpu - 1:+.1%})"
    print(f"{title}: {of_wall}; {of_cpu}; the file has {os.path.getsize(trace) / 1e3:.0f} kB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--gib", type=float, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large, first = (Path(folder) / f"{name}.safetensors" for name in ("small", "large", "first"))
        write_checkpoint(small, arguments.tensors)
        blocks = max(1, round(arguments.gib * 64))
        save_file({f"{at}": np.full(4 << 20, at, np.float32) for at in range(blocks)}, large)
        save_file({"first": np.zeros(1 << 20, np.float32)}, first)
        compare(f"{arguments.tensors} tensors of 64 bytes", small, arguments.rounds, first)
        compare(f"{blocks} tensors of 16 MiB", large, arguments.rounds, first)


if __name__ == "__main__":
    main()
