"""Load one checkpoint over S3 by all processes of a machine: sharing, each for itself, and by Run:ai's broadcast.

    PYTHONPATH=.venv/bench python benchmarks/bench_node.py [--ranks 4,8] [--rounds 3] [--bytes N] [--only REGEX]

Rows: one process alone; so many processes with ``share="node"``; as many without; and as many with Run:ai and
RUNAI_STREAMER_DIST=1, over gloo. nginx on loopback is the server. Guarantees: every process keeps all tensors and
compares them with the files after the clock; the clock runs from the moment when all have imported what they need, and
have made their process group, to the end of the last one; rows take turns. `CPU s/GB` is what all processes took
together, without the server, for each GB that they loaded together. `sent` is what the server sent, over the size of
the checkpoint, headers included. `memory` is the peak of what the processes held together (PSS, so shared pages count
once), beside what they held before; `kept` is the part of it that the tensors take. ``make .venv/.bench`` installs
Run:ai.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from bench_load import targets  # noqa: E402  its folder is no package
from bench_share import peak_of  # noqa: E402
from checkpoint import expected_tensors, make_or_reuse  # noqa: E402
from contestants import Target  # noqa: E402
from measure import MASK, tensor_digest  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402

KINDS = ("share=node", "share=off", "Run:ai, DIST")


class CountingOrigin(NginxOrigin):
    """Writes down the bytes of each answer, which costs less than a proxy that counts."""

    def http_settings(self) -> str:
        """Log the size of each answer."""
        log = f"log_format sent '$bytes_sent'; access_log {self.work}/sent.log sent buffer=64k flush=100ms;"
        return f"{log} keepalive_timeout 300s;"

    def sent_bytes(self) -> int:
        """Add up all answers so far."""
        time.sleep(0.3)  # the log is flushed by then
        return sum(map(int, Path(self.work, "sent.log").read_text().split()))


def loaded(kind: str, target: Target) -> dict[str, Any]:
    """Load as a row says; keep everything."""
    if kind.startswith("Run:ai"):
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as files:
            files.stream_files(target.paths, device="cpu", is_distributed=True)
            return dict(files.get_tensors())
    import streamer

    options = streamer.Options(share="node" if kind == "share=node" else "off")
    return streamer.load(target.paths, storage_options=target.storage_options(), options=options, progress=False)


def rank() -> None:
    """Load once the parent says so; one process."""
    request = json.loads(sys.stdin.readline())
    kind, target = request["kind"], Target(**request["target"])
    if kind.startswith("Run:ai"):
        import runai_model_streamer
        import runai_model_streamer_s3
        import torch.distributed as dist

        assert all((runai_model_streamer, runai_model_streamer_s3))
        store = dist.FileStore(request["store"], request["ranks"])
        dist.init_process_group("gloo", rank=request["rank"], world_size=request["ranks"], store=store)
    else:
        import torch  # noqa: F401  before the clock runs

        import streamer.backends.s3.store  # noqa: F401  the same
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_before = sum(os.times()[:2])
    tensors = loaded(kind, target)
    cpu_seconds = sum(os.times()[:2]) - cpu_before
    print(json.dumps({"cpu_seconds": cpu_seconds}), flush=True)
    sys.stdin.readline()  # the checks of one rank must not slow down the load of another
    digests = [tensor_digest(name, tensor) for name, tensor in tensors.items()]
    found = {"bytes": sum(size for size, _ in digests), "digest": sum(value for _, value in digests) & MASK}
    print(json.dumps({"tensors": len(tensors), **found}), flush=True)
    sys.stdin.readline()
    os._exit(0)  # whatever a loader leaves running


class Ranks:
    """The processes of one round; a context manager that ends them."""

    def __init__(self, kind: str, ranks: int, target: Target, store: str) -> None:
        extra = {"LOCAL_WORLD_SIZE": str(ranks), "RUNAI_STREAMER_DIST": "1", "GLOO_SOCKET_IFNAME": "lo"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, __file__, "--rank"]
        environment = os.environ | target.environment() | extra
        self._processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(ranks)]
        self.pids = [process.pid for process in self._processes]
        for number, process in enumerate(self._processes):
            request = {"kind": kind, "ranks": ranks, "rank": number, "store": store, "target": vars(target)}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        assert self.lines() == ["ready\n"] * ranks, kind

    def say(self, line: str) -> None:
        """Send a line to all."""
        for process in self._processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def lines(self) -> list[str]:
        """Wait for a line of each."""
        return [process.stdout.readline() for process in self._processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def measure(kind: str, ranks: int, shards: list[Path], expected: dict[str, int]) -> dict[str, Any]:
    """Run one round."""
    folder = shards[0].parent
    with tempfile.TemporaryDirectory() as scratch, CountingOrigin(folder.parent) as origin:
        target = targets("http", shards, origin)
        with Ranks(kind, ranks, target, f"{scratch}/store") as processes:
            with peak_of(processes.pids) as held:
                began = time.perf_counter()
                processes.say("go")
                answers = [json.loads(line) for line in processes.lines()]
                seconds = time.perf_counter() - began
            sent_bytes = origin.sent_bytes()
            processes.say("check")
            for line in processes.lines():
                got = json.loads(line)
                assert got == {key: expected[key] for key in got}, (kind, got)
    loaded_gb = ranks * expected["bytes"] / 1e9
    return {
        "seconds": seconds,
        "cpu_seconds_per_gb": sum(each["cpu_seconds"] for each in answers) / loaded_gb,
        "sent": sent_bytes / expected["bytes"],
        "memory_bytes": held[1] - held[0],
        "kept_bytes": ranks * expected["bytes"],
    }


def report(results: dict[str, list[dict[str, Any]]], size_gb: float) -> None:
    """Print the table."""
    print(f"S3 on loopback (nginx), {size_gb:.2f} GB, {os.cpu_count()} cores for the server and all processes")
    print(f"{'':24}{'median s':>10}{'best':>8}{'max':>8}{'CPU s/GB':>10}{'sent':>8}{'memory MB':>11}{'kept MB':>9}")
    for name, rounds in results.items():
        keys = ("seconds", "cpu_seconds_per_gb", "sent", "memory_bytes", "kept_bytes")
        seconds, cpu, sent, memory, kept = ([each[key] for each in rounds] for key in keys)
        times = f"{statistics.median(seconds):10.2f}{min(seconds):8.2f}{max(seconds):8.2f}"
        held = f"{statistics.median(memory) / 1e6:11.0f}{kept[0] / 1e6:9.0f}"
        print(f"{name:24}{times}{statistics.median(cpu):10.2f}{max(sent):8.3f}{held}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="4,8", help="comma-separated (default 4,8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=3_000_000_000, help="size of the checkpoint (default 3 GB)")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank()
        return
    folder = (HERE.parent / ".bench" / f"model-{arguments.bytes}").resolve()
    shards = make_or_reuse(folder, arguments.bytes, 4)
    expected = expected_tensors(shards)
    rows = {"1 x alone": ("share=off", 1)}
    rows |= {f"{ranks} x {kind}": (kind, int(ranks)) for ranks in arguments.ranks.split(",") for kind in KINDS}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in rows if arguments.only.search(name)}
    for number in range(arguments.rounds):
        for name in list(results)[:: -1 if number % 2 else 1]:
            results[name].append(measure(*rows[name], shards, expected))
    report(results, expected["bytes"] / 1e9)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
