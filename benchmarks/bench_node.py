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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from bench_load import targets  # noqa: E402  its folder is no package
from checkpoint import expected_tensors, make_or_reuse  # noqa: E402
from contestants import Target  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402
from rank_processes import Ranks, answer, in_turn, peak_of, print_rows, request_of_parent  # noqa: E402

KINDS = ("share=node", "share=off", "Run:ai, DIST")
COLUMNS = {
    "CPU s/GB": ("cpu_seconds_per_gb", 1, ".2f"),
    "sent": ("sent", 1, ".3f"),
    "memory MB": ("memory_bytes", 1e6, ".0f"),
    "kept MB": ("kept_bytes", 1e6, ".0f"),
}


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
    request = request_of_parent()
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
    answer(lambda: loaded(kind, target))


def measure(kind: str, ranks: int, shards: list[Path], expected: dict[str, int]) -> dict[str, Any]:
    """Run one round."""
    extra = {"LOCAL_WORLD_SIZE": str(ranks), "RUNAI_STREAMER_DIST": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as scratch, CountingOrigin(shards[0].parent.parent) as origin:
        target = targets("http", shards, origin)
        request = {"kind": kind, "ranks": ranks, "store": f"{scratch}/store", "target": vars(target)}
        requests = [{**request, "rank": number} for number in range(ranks)]
        with Ranks(__file__, requests, os.environ | target.environment() | extra) as processes:
            with peak_of(processes.pids) as held:
                seconds, answers = processes.load()
            sent_bytes = origin.sent_bytes()
            processes.check(expected)
    return {
        "seconds": seconds,
        "cpu_seconds_per_gb": sum(each["cpu_seconds"] for each in answers) / (ranks * expected["bytes"] / 1e9),
        "sent": sent_bytes / expected["bytes"],
        "memory_bytes": held[1] - held[0],
        "kept_bytes": ranks * expected["bytes"],
    }


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
    names = [name for name in rows if arguments.only.search(name)]
    results = in_turn(names, arguments.rounds, lambda name: measure(*rows[name], shards, expected))
    size_gb = expected["bytes"] / 1e9
    print(f"S3 on loopback (nginx), {size_gb:.2f} GB, {os.cpu_count()} cores for the server and all processes")
    print_rows(results, COLUMNS)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
