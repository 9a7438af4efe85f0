"""Load one checkpoint from cold files with several processes at the same time, as the ranks of one machine do.

    python benchmarks/bench_ranks.py [--ranks 4] [--rounds 3] [--bytes N] [--json FILE]

Guarantees: every rank keeps all tensors and checks them; files are dropped from the page cache before each round; the
clock runs from the moment when all ranks have imported what they need, and touched memory, to the end of the last one.
`disk` is what all of them together made the kernel read from the device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from checkpoint import expected_tensors, make_or_reuse
from contestants import CONTESTANTS, Target, environment_for
from measure import drop_from_page_cache, touch_and_free
from run_one import run

HERE = Path(__file__).resolve().parent
ROWS: dict[str, tuple[str, dict[str, str]]] = {  # name: the contestant, and what else its environment has
    "streamer": ("streamer load", {}),
    "streamer, direct_io=True": ("streamer load", {"STREAMER_DIRECT_IO": "1"}),
    "streamer, direct_io=False": ("streamer load", {"STREAMER_DIRECT_IO": "0"}),
    "Run:ai": ("runai default", {}),
    "Run:ai sync_buffered": ("runai sync_buffered", {}),
    "safetensors clone": ("safetensors clone", {}),
}


def rank() -> None:
    """Load once the parent says so; one process."""
    request = json.loads(sys.stdin.readline())
    contestant = CONTESTANTS[request["row"]]
    contestant.import_all()
    touch_and_free(request["touch_bytes"], huge_pages=contestant.huge_pages)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(contestant, Target(request["paths"]), 0)), flush=True)


def measure(name: str, shards: list[Path], ranks: int) -> dict[str, Any]:
    """Run one round: seconds until the last rank is done, and bytes from the disk."""
    drop_from_page_cache(shards)
    row, extra = ROWS[name]
    target = Target([str(path) for path in shards])
    environment = environment_for(CONTESTANTS[row], target) | extra
    command = [sys.executable, __file__, "--rank"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(ranks)]
    for process in processes:
        size_bytes = sum(path.stat().st_size for path in shards)
        process.stdin.write(json.dumps({"row": row, "paths": target.paths, "touch_bytes": size_bytes}) + "\n")
        process.stdin.flush()
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    began = time.perf_counter()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for process in processes]
    seconds = time.perf_counter() - began
    expected = expected_tensors(shards)
    for process, answer in zip(processes, answers, strict=True):
        process.communicate()
        assert {key: answer[key] for key in expected} == expected, name
    return {"seconds": seconds, "disk_bytes": sum(answer["disk_bytes"] for answer in answers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the checkpoint (default 2 GiB)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank()
        return
    folder = HERE.parent / ".bench" / f"model-{arguments.bytes}"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, 4)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ROWS}
    for number in range(arguments.rounds):
        for name in list(ROWS)[:: -1 if number % 2 else 1]:
            results[name].append(measure(name, shards, arguments.ranks))
    size_gb = sum(path.stat().st_size for path in shards) / 1e9
    print(f"{arguments.ranks} ranks, {size_gb:.2f} GB, {os.cpu_count()} cores")
    print(f"{'':28}{'median s':>10}{'best':>8}{'max':>8}{'disk GB':>10}")
    for name, rounds in results.items():
        seconds = [each["seconds"] for each in rounds]
        disk = statistics.median(each["disk_bytes"] for each in rounds) / 1e9
        print(f"{name:28}{statistics.median(seconds):10.2f}{min(seconds):8.2f}{max(seconds):8.2f}{disk:10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
