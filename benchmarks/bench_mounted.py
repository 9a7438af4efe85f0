"""Load a file of a mounted network file system with several ranks, with and without read-ahead by stripes.

    python benchmarks/bench_mounted.py [--mb 96] [--ranks 4] [--latency-ms 400] [--requests 16] [--rounds 3]

A FUSE mount stands for the file server: it answers each request after the latency, as many at a time as the kernel
sends (``--requests`` limits its read-ahead). Rows take turns, each with a new mount, so with an empty page cache. The
clock runs from the moment when all ranks have imported what they need to the end of the last one. `read` is what the
server sent, over the size of the file. It needs the right to mount.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
TENSOR_BYTES = 2 << 20


def rank(uri: str) -> None:
    """Load once the parent says so; one process."""
    import numpy as np  # before the clock runs

    import streamer

    print("ready", flush=True)
    sys.stdin.readline()
    with streamer.stream(uri, framework="np", progress=False) as tensors:
        for name, tensor in tensors:
            assert tensor[0] == int(name) % 256, name
            assert np.asarray(tensor).nbytes == TENSOR_BYTES
    print("done", flush=True)


def measured(data: bytes, ranks: int, arguments: argparse.Namespace, *, advises: bool) -> tuple[float, float]:
    """Run one round; return the seconds, and the bytes that the server sent over those of the file."""
    from servers.short_fuse import fuse_mount

    sent: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"latency_s": arguments.latency_ms / 1000, "read_ahead_requests": arguments.requests}
        with fuse_mount(Path(folder), data, on_cache_read=lambda _, size: sent.append(size), **how) as path:
            command = [sys.executable, __file__, "--rank", str(path)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            environment = os.environ | {"LOCAL_WORLD_SIZE": str(ranks)}
            # Without its number, a rank does not know which stripes are its own, and advises none.
            numbers = [{"LOCAL_RANK": str(number)} if advises else {} for number in range(ranks)]
            processes = [subprocess.Popen(command, env=environment | each, **pipes) for each in numbers]
            assert {process.stdout.readline() for process in processes if process.stdout} == {"ready\n"}
            began = time.perf_counter()
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            assert {process.stdout.readline() for process in processes} == {"done\n"}
            seconds = time.perf_counter() - began
            for process in processes:
                process.communicate()
    return seconds, sum(sent) / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=96)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--latency-ms", type=float, default=400)
    parser.add_argument("--requests", type=int, default=16, help="most requests of the kernel's read-ahead at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", metavar="URI", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.rank)
        return
    import numpy as np
    from safetensors.numpy import save

    names = map(str, range(arguments.mb * 1_000_000 // TENSOR_BYTES))
    data = save({name: np.full(TENSOR_BYTES, int(name) % 256, np.uint8) for name in names})
    rows = {
        "one rank": (1, False),
        f"{arguments.ranks} ranks": (arguments.ranks, False),
        f"{arguments.ranks} ranks, advice": (arguments.ranks, True),
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(arguments.rounds):
        for name, (ranks, advises) in rows.items():
            results[name].append(measured(data, ranks, arguments, advises=advises))
    print(f"{'':24}{'median s':>10}{'best':>8}{'max':>8}{'read':>8}")
    for name, rounds in results.items():
        seconds = [each for each, _ in rounds]
        times = f"{statistics.median(seconds):10.2f}{min(seconds):8.2f}{max(seconds):8.2f}"
        print(f"{name:24}{times}{max(read for _, read in rounds):8.3f}")


if __name__ == "__main__":
    main()
