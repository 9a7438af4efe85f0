"""Save one model from all ranks of a gloo group, to a disk and to S3: each rank has rows, or columns, of each tensor.

    python benchmarks/bench_save_ranks.py [--ranks 2] [--rounds 3] [--gib 1] [--only REGEX] [--json FILE]

Rows: `streamer.save` with ``group=``; a gather (``full_tensor``) to rank 0, which then saves; and ``dcp.save`` with
torch's FsspecWriter, which writes another format: a file for each rank. S3 is a real server on loopback. The clock
starts when all ranks have made their tensors, and stops when the last one has ended; contestants alternate. What
streamer and the gather wrote is compared afterwards. Memory is the largest growth of a rank's resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from rank_processes import Ranks, answer, in_turn, print_rows, request_of_parent  # noqa: E402

WAYS = ("streamer, group", "gather, streamer", "dcp, FsspecWriter")
ROWS = [f"{way}, {cut}, {place}" for place in ("disk", "S3") for cut in ("rows", "columns") for way in WAYS]
TENSORS = 16


def model(rows_of: int, rank: int, ranks: int, cut: str) -> dict[str, Any]:
    """Make this rank's part of each tensor."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, dim = init_device_mesh("cpu", (ranks,)), int(cut == "columns")
    shape = [rows_of, 4096]
    shape[dim] //= ranks
    torch.manual_seed(rank)
    return {
        f"layer.{number}.weight": DTensor.from_local(torch.randn(shape), mesh, [Shard(dim)], run_check=False)
        for number in range(TENSORS)
    }


def save(row: str, tensors: dict[str, Any], request: dict[str, Any]) -> None:
    """Save in the way that a row names."""
    import torch.distributed as dist

    import streamer

    uri, options = request["uri"], request["options"]
    if row.startswith("streamer"):
        streamer.save(tensors, uri, group=dist.group.WORLD, storage_options=options, progress=False)
    elif row.startswith("gather"):
        whole = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor()
            if not request["rank"]:
                whole[name] = full
        if whole:
            streamer.save(whole, uri, storage_options=options, progress=False)
        dist.barrier()
    else:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        dcp.save(tensors, storage_writer=FsspecWriter(uri, **(options or {})))


def rank() -> None:
    """Save once all ranks are ready; one process."""
    import torch
    import torch.distributed as dist

    import streamer

    request = request_of_parent()
    torch.set_num_threads(1)
    own, ranks, row = request["rank"], request["ranks"], request["row"]
    dist.init_process_group("gloo", rank=own, world_size=ranks, store=dist.FileStore(request["store"], ranks))
    rows_of = int(request["gib"] * (1 << 30)) // TENSORS // 4 // 4096
    tensors = model(rows_of, own, ranks, row.split(", ")[-2])
    streamer.save({"a": torch.ones(1)}, f"{request['uri']}-warm-{own}", storage_options=request["options"])
    dist.barrier()

    def saved() -> dict[str, Any]:
        with peak() as grown:
            save(row, tensors, request)
        Path(f"{request['store']}-{own}").write_text(str(grown[0]))
        return {}

    answer(saved)


@contextmanager
def peak() -> Iterator[list[int]]:
    """Measure the growth of the resident set."""
    grown: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _of_status("VmRSS")
    yield grown
    grown.append(_of_status("VmHWM") - before)


def _of_status(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) << 10


def measure(row: str, arguments: argparse.Namespace, scratch: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one round."""
    name = str(time.monotonic_ns())
    is_s3, store = row.endswith("S3"), f"{scratch}/store-{name}"
    uri = f"s3://bench/{name}" if is_s3 else f"{scratch}/{name}"
    request = {"row": row, "ranks": arguments.ranks, "store": store, "gib": arguments.gib, "uri": uri}
    requests = [{**request, "options": options if is_s3 else None, "rank": n} for n in range(arguments.ranks)]
    with Ranks(__file__, requests, {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) as processes:
        seconds, figures = processes.load()
        peaks = [int(Path(f"{store}-{number}").read_text()) for number in range(arguments.ranks)]
    digest = None if row.startswith("dcp") else digest_of(uri, options if is_s3 else None)
    if not is_s3:
        shutil.rmtree(uri)
    cpu_seconds = sum(each["cpu_seconds"] for each in figures)
    size_bytes = arguments.gib * (1 << 30)
    return {"seconds": seconds, "cpu_per_gb": cpu_seconds / size_bytes * 1e9, "peak": max(peaks), "digest": digest}


def digest_of(uri: str, options: dict[str, Any] | None) -> int:
    """Read what was written, and compute a digest."""
    import streamer

    value = 0
    for _, tensor in sorted(streamer.load(uri, verify="manifest", storage_options=options, progress=False).items()):
        value = zlib.crc32(memoryview(tensor.view(-1).numpy()).cast("B"), value)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows to run")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank()
        return
    from servers.seaweedfs import SeaweedServer

    rows = [row for row in ROWS if arguments.only.search(row)]
    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        server.make_bucket("bench")
        options = server.storage_options()
        results = in_turn(rows, arguments.rounds, lambda row: measure(row, arguments, scratch, options))
    for cut in ("rows", "columns"):
        digests = {run["digest"] for row, runs in results.items() if cut in row for run in runs} - {None}
        assert len(digests) < 2, "the contestants' files differ"
    print(f"{arguments.ranks} ranks, {arguments.gib} GiB, {os.cpu_count()} cores")
    print_rows(results, {"CPU-s/GB": ("cpu_per_gb", 1, ".2f"), "peak MiB": ("peak", 1 << 20, ".0f")})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
