"""Load one checkpoint with several processes at the same time, as the ranks of one machine do.

    python benchmarks/bench_ranks.py [--places cold,warm,http] [--ranks 4] [--rounds 3] [--bytes N] [--json FILE]

The files are cold (dropped from the page cache before each round), in the page cache, or on an HTTP server. Some rows
have settings that a user may set by hand. Guarantees: every rank keeps all tensors and checks them. The clock starts
when all ranks have finished their imports and touched memory, and stops when the last rank has ended. `disk` is the
number of bytes that the kernel read from the device for all ranks, `peak` the sum of their peaks above their tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bench_load import targets
from checkpoint import expected_tensors, make_or_reuse
from contestants import CONTESTANTS, Target, environment_for
from measure import bring_into_page_cache, drop_from_page_cache, touch_and_free
from nginx_origin import NginxOrigin
from rank_processes import Ranks, in_turn, print_rows, request_of_parent
from run_one import run

HERE = Path(__file__).resolve().parent
Rows: TypeAlias = dict[str, tuple[str, dict[str, str]]]  # name: the contestant, and additional variables
# torchrun sets this variable, and so do vLLM and SGLang; its value is the number of ranks.
LAUNCHED = {"LOCAL_WORLD_SIZE": ""}
ROWS: dict[str, Rows] = {
    "cold": {
        "streamer": ("streamer load", {}),
        "streamer, direct_io=True": ("streamer load", {"STREAMER_DIRECT_IO": "1"}),
        "streamer, direct_io=False": ("streamer load", {"STREAMER_DIRECT_IO": "0"}),
        "Run:ai": ("runai default", {}),
        "Run:ai sync_buffered": ("runai sync_buffered", {}),
        "safetensors clone": ("safetensors clone", {}),
    },
    "warm": {
        "streamer": ("streamer load", {}),
        "streamer, launched together": ("streamer load", LAUNCHED),
        "streamer, 1 file thread": ("streamer load", {"STREAMER_FILE_THREADS": "1"}),
        "streamer, 2 file threads": ("streamer load", {"STREAMER_FILE_THREADS": "2"}),
        "Run:ai sync_buffered": ("runai sync_buffered", {}),
    },
    "http": {
        "streamer": ("streamer load", {}),
        "streamer, launched together": ("streamer load", LAUNCHED),
        "streamer, 1 loop of 2": ("streamer load", {"STREAMER_HTTP_REACTORS": "1", "STREAMER_HTTP_IN_FLIGHT": "2"}),
        "streamer, 1 loop of 4": ("streamer load", {"STREAMER_HTTP_REACTORS": "1", "STREAMER_HTTP_IN_FLIGHT": "4"}),
    },
}


def rank() -> None:
    """Load once in one process, when the parent sends a line."""
    request = request_of_parent()
    contestant = CONTESTANTS[request["row"]]
    contestant.import_all()
    touch_and_free(request["touch_bytes"], huge_pages=contestant.huge_pages)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(contestant, Target(**request["target"]), 0)), flush=True)  # it checks the tensors, too


def measure(place: str, name: str, target: Target, shards: list[Path], ranks: int) -> dict[str, Any]:
    """Run one round; return seconds until all ranks are done, bytes from the disk, and memory beside the tensors."""
    (drop_from_page_cache if place == "cold" else bring_into_page_cache)(shards)
    row, extra = ROWS[place][name]
    counted = {name: str(ranks) for name in LAUNCHED if name in extra}
    size_bytes = sum(path.stat().st_size for path in shards)
    request = {"row": row, "target": vars(target), "touch_bytes": size_bytes}
    with Ranks(__file__, [request] * ranks, environment_for(CONTESTANTS[row], target) | extra | counted) as processes:
        seconds, answers = processes.load()
    expected = expected_tensors(shards)
    for answer in answers:
        assert {key: answer[key] for key in expected} == expected, name
    disk_bytes = sum(answer["disk_bytes"] for answer in answers)
    peak_bytes = sum(answer["peak_rss_bytes"] - answer["bytes"] for answer in answers)
    return {"seconds": seconds, "disk_bytes": disk_bytes, "peak_bytes": peak_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", default=",".join(ROWS), help="comma-separated, of: " + ", ".join(ROWS))
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
    results = {}
    for place in arguments.places.split(","):
        with NginxOrigin(folder.parent) if place == "http" else nullcontext() as origin:
            target = targets(place, shards, origin)
            measure_row = partial(measure, place, target=target, shards=shards, ranks=arguments.ranks)
            results[place] = in_turn(list(ROWS[place]), arguments.rounds, measure_row)
        size_gb = sum(path.stat().st_size for path in shards) / 1e9
        print(f"{place}: {arguments.ranks} ranks, {size_gb:.2f} GB, {os.cpu_count()} cores")
        print_rows(results[place], {"disk GB": ("disk_bytes", 1e9, ".2f"), "peak MB": ("peak_bytes", 1e6, ".0f")})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
