"""Load one checkpoint from S3 with several processes at the same time: with ``share="node"``, and each on its own.

    python benchmarks/bench_share.py [--ranks 1,4,8] [--rounds 3] [--bytes N] [--json FILE]

SeaweedFS runs on the same machine, on loopback. Guarantees: every process keeps all tensors and checks them. The clock
starts when all processes have finished their imports, and stops when the last one has ended. Rows take turns. `CPU s`
is the processor time of each process. `read` is the number of bytes that all processes read from the storage, divided
by the size of the checkpoint. `memory` is the peak memory of all processes together (PSS, so shared pages count once),
without the memory that they held before and without their tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checkpoint import expected_tensors, make_or_reuse
from measure import tensor_digest

HERE = Path(__file__).resolve().parent
SHARES = ("node", "off")
SAMPLE_S = 0.05


def rank() -> None:
    """Load once in one process, when the parent sends a line."""
    import torch  # noqa: F401  before the clock runs

    import streamer
    import streamer.backends.s3.store

    request = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    sys.stdin.readline()
    options = streamer.Options(share=request["share"])
    how = {"storage_options": request["storage_options"], "progress": False, "options": options}
    cpu_before = sum(os.times()[:2])
    with streamer.stream(request["uri"], **how) as stream:
        tensors = dict(stream)
    cpu_seconds = sum(os.times()[:2]) - cpu_before
    print(json.dumps({"cpu_seconds": cpu_seconds, **stream.report.to_dict()}), flush=True)
    sys.stdin.readline()  # the checks of one rank must not slow down the load of another
    digests = [tensor_digest(name, tensor) for name, tensor in tensors.items()]
    checked = {"bytes": sum(size for size, _ in digests), "digest": sum(each for _, each in digests) & (2**64 - 1)}
    print(json.dumps({"tensors": len(tensors), **checked}), flush=True)


def held_bytes(pids: list[int]) -> int:
    """Add up the memory of processes; shared pages count once."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("\nPss:")[2].split()[0]) << 10
    return total


@contextmanager
def peak_of(pids: list[int]) -> Iterator[list[int]]:
    """Sample the memory of processes; the list holds the first value and the peak, in bytes."""
    found, is_over = [held_bytes(pids)] * 2, threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_S):
            found[1] = max(found[1], held_bytes(pids))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        is_over.set()
        sampler.join()


def measure(request: dict[str, Any], ranks: int, expected: dict[str, int]) -> dict[str, Any]:
    """Run one round."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--rank"]
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(ranks)]

    def say(line: str) -> None:
        for process in processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    say(json.dumps(request))
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    with peak_of([process.pid for process in processes]) as held:
        began = time.perf_counter()
        say("go")
        answers = [json.loads(process.stdout.readline()) for process in processes]
        seconds = time.perf_counter() - began
    say("check")
    for process in processes:
        got = json.loads(process.stdout.readline())
        assert got == {key: expected[key] for key in got}, got
        process.communicate()
    return {
        "seconds": seconds,
        "cpu_seconds": sum(each["cpu_seconds"] for each in answers) / ranks,
        "read": sum(each["bytes_read"] for each in answers) / expected["bytes"],
        "memory_bytes": held[1] - held[0] - ranks * expected["bytes"],
    }


def report(results: dict[str, list[dict[str, Any]]], size_gb: float) -> None:
    """Print the table."""
    print(f"S3 on loopback, {size_gb:.2f} GB, {os.cpu_count()} cores for the server and all processes")
    print(f"{'':24}{'median s':>10}{'best':>8}{'max':>8}{'CPU s':>8}{'read':>8}{'memory MB':>11}")
    for name, rounds in results.items():
        keys = ("seconds", "cpu_seconds", "read", "memory_bytes")
        seconds, cpu, read, memory = ([each[key] for each in rounds] for key in keys)
        times = f"{statistics.median(seconds):10.2f}{min(seconds):8.2f}{max(seconds):8.2f}"
        times += f"{statistics.median(cpu):8.2f}"
        print(f"{name:24}{times}{max(read):8.3f}{statistics.median(memory) / 1e6:11.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,4,8", help="comma-separated (default 1,4,8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="size of the checkpoint (default 1 GiB)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank()
        return
    sys.path.insert(0, str(HERE.parent / "tests"))
    from servers.seaweedfs import SeaweedServer

    folder = (HERE.parent / ".bench" / f"model-{arguments.bytes}").resolve()
    shards = make_or_reuse(folder, arguments.bytes, 4)
    expected = expected_tensors(shards)
    rows = [(int(ranks), share) for ranks in arguments.ranks.split(",") for share in SHARES]
    results: dict[str, list[dict[str, Any]]] = {f"{ranks} x share={share}": [] for ranks, share in rows}
    server = SeaweedServer()
    server.start()
    try:
        server.make_bucket("bench")
        request = {"uri": server.upload_folder(folder, "bench", "model"), "storage_options": server.storage_options()}
        for _ in range(arguments.rounds):
            for ranks, share in rows:
                results[f"{ranks} x share={share}"].append(measure({**request, "share": share}, ranks, expected))
    finally:
        server.stop()
    report(results, expected["bytes"] / 1e9)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
