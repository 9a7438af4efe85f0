"""Load one checkpoint with all ranks of a gloo group, from a server behind a link that all ranks share.

    python benchmarks/bench_group.py [--ranks 4] [--rounds 3] [--bytes N] [--link BYTES] [--only REGEX] [--json FILE]

Rows: each rank alone; the group together, which reads each byte once; the same with slices of a tensor-parallel rank;
and Run:ai with RUNAI_STREAMER_DIST=1. Guarantees: each load of whole tensors keeps all of them and compares them with
the files. The clock starts when all ranks have finished their imports, and stops when the last one has ended. `sent` is
the number of bytes that passed the server's link, headers included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from bench_load import targets  # noqa: E402
from checkpoint import expected_tensors, make_or_reuse  # noqa: E402
from contestants import Target  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402
from rank_processes import Ranks, answer, in_turn, print_rows, request_of_parent  # noqa: E402
from servers.tcp_proxy import TcpProxy, http_requests  # noqa: E402

ROWS = (
    "streamer, each alone",
    "streamer, group",
    "streamer, slices alone",
    "streamer, slices and group",
    "Run:ai, DIST",
)
PARTIAL = ("streamer, slices alone", "streamer, slices and group")


def slices(rank: int, ranks: int) -> Any:
    """Cut every second tensor by rows and the others by columns, as tensor parallelism does."""
    import streamer

    def part(name: str, shape: tuple[int, ...], _dtype: str) -> streamer.Slice | None:
        return streamer.Slice(len(name) % 2, rank, ranks) if len(shape) == 2 else None

    return part


def loaded(row: str, target: Target, rank: int, ranks: int) -> dict[str, Any]:
    """Load in the way that a row names."""
    import torch.distributed as dist

    if row.startswith("Run:ai"):
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as files:
            files.stream_files(target.paths, device="cpu", is_distributed=True)
            return dict(files.get_tensors())
    import streamer

    group = dist.group.WORLD if "group" in row else None
    part = slices(rank, ranks) if "slices" in row else None
    options = target.storage_options()
    return streamer.load(target.paths, group=group, slices=part, storage_options=options, progress=False)


def rank() -> None:
    """Load once all ranks are ready; one process."""
    import torch.distributed as dist

    request = request_of_parent()
    own, ranks, row = request["rank"], request["ranks"], request["row"]
    dist.init_process_group("gloo", rank=own, world_size=ranks, store=dist.FileStore(request["store"], ranks))
    import streamer

    assert callable(streamer.load)
    if row.startswith("Run:ai"):
        import runai_model_streamer
        import runai_model_streamer_s3

        assert runai_model_streamer
        assert runai_model_streamer_s3
    answer(lambda: loaded(row, Target(**request["target"]), own, ranks))


def measure(row: str, shards: list[Path], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one round; return the seconds until the last rank has ended, and the bytes that the server sent."""
    store = folder / f"store-{time.monotonic_ns()}"
    extra = {"RUNAI_STREAMER_DIST": "1", "GLOO_SOCKET_IFNAME": "lo", "RUNAI_STREAMER_CONCURRENCY": "4"}
    with (
        NginxOrigin(folder.parent) as origin,
        TcpProxy(origin.http_port, http_requests, bytes_per_s=arguments.link) as link,
    ):
        target = replace(targets("http", shards, origin), endpoint=f"http://127.0.0.1:{link.port}")
        request = {"row": row, "ranks": arguments.ranks, "store": str(store), "target": vars(target)}
        requests = [{**request, "rank": number} for number in range(arguments.ranks)]
        with Ranks(__file__, requests, os.environ | target.environment() | extra) as processes:
            seconds, _ = processes.load()
            sent_bytes = link.passed_bytes
            if row not in PARTIAL:
                processes.check(expected_tensors(shards))
    store.unlink(missing_ok=True)
    return {"seconds": seconds, "sent_bytes": sent_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="size of the checkpoint (default 1 GiB)")
    parser.add_argument("--link", type=int, default=200_000_000, help="bytes per second of the link; 0: no limit")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures here")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank()
        return
    arguments.link = arguments.link or None
    folder = HERE.parent / ".bench" / f"model-{arguments.bytes}"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, 4)
    rows = [row for row in ROWS if arguments.only.search(row)]
    results = in_turn(rows, arguments.rounds, lambda row: measure(row, shards, arguments, folder))
    size_bytes = sum(path.stat().st_size for path in shards)
    link = f"{arguments.link / 1e6:.0f} MB/s" if arguments.link else "unlimited"
    print(f"{arguments.ranks} ranks, {size_bytes / 1e9:.2f} GB, link {link}, {os.cpu_count()} cores")
    print_rows(results, {"sent / model": ("sent_bytes", size_bytes, ".3f")})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
