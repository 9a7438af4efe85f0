"""Measure loaders at each concurrency: from disks of 1 and 2 GiB/s, and from a store as slow as S3.

    make .venv/.bench && export PYTHONPATH=.venv/bench
    python benchmarks/bench_experiments.py [--experiments disk-1,disk-2,store] [--rounds 3] [--bytes N] [--pictures DIR]

Guarantees: as `bench_load.py`. The files are cold before each run from a disk. The disk is this machine's own, and a
control group limits its speed (``io.max``, or ``blkio.throttle.read_bps_device``), which needs root. The store is
`paced_server.cc`: 30 ms, and 90 MB/s for each connection. ``N threads`` and ``N requests`` are set by the option that
each loader has for this; in rows without a number, the loader chooses. `--pictures` writes one SVG for each experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench_load import HERE, Session
from checkpoint import make_or_reuse
from contestants import CONTESTANTS, Contestant, Target, tensorized
from paced_origin import Pace, PacedOrigin
from pictures import concurrency_picture
from report import Row, table

GIB = 1 << 30
DISK_THREADS = (1, 4, 8, 16)
STORE_REQUESTS = (4, 16, 32, 64)
GROUPS = Path("/sys/fs/cgroup")
TITLES = {
    "disk-1": "Cold files on a disk of 1 GiB/s",
    "disk-2": "Cold files on a disk of 2 GiB/s",
    "store": "A store as slow as S3: 30 ms, 90 MB/s for each connection",
}


def _with(row: str, name: str, section: str, environment: dict[str, str]) -> Contestant:
    base = CONTESTANTS[row]
    return replace(base, name=name, sections=(section,), environment=base.environment | environment, listed_as=row)


def of_disks() -> list[Contestant]:
    """List the loaders of files, with each number of threads."""
    rows = [_with("streamer load", "streamer", "file-cold", {})]
    rows.append(_with("safetensors clone", "safetensors", "file-cold", {}))
    for count in map(str, DISK_THREADS):
        rows += [
            _with("streamer load", f"streamer fixed, {count} threads", "file-cold", {"STREAMER_FILE_THREADS": count}),
            _with("runai default", f"Run:ai, {count} threads", "file-cold", {"RUNAI_STREAMER_CONCURRENCY": count}),
            _with("tensorizer", f"tensorizer, {count} threads", "file-cold", {"BENCH_READERS": count}),
            _with("fastsafetensors", f"fastsafetensors, {count} threads", "file-cold", {"BENCH_READERS": count}),
        ]
    return rows


def of_store() -> list[Contestant]:
    """List the loaders from S3, with each number of requests in flight."""
    rows = [_with("streamer load", "streamer", "http", {}), _with("s3fs cat_ranges", "s3fs", "http", {})]
    for count in STORE_REQUESTS:
        fixed = {"STREAMER_HTTP_REACTORS": "2", "STREAMER_HTTP_IN_FLIGHT": str(count // 2)}
        names = ("RUNAI_STREAMER_CONCURRENCY", "RUNAI_STREAMER_OBJ_CONCURRENCY")
        runai = dict.fromkeys(names, str(count))
        rows.append(_with("streamer load", f"streamer fixed, {count} requests", "http", fixed))
        rows.append(_with("runai s3 concurrency 4", f"Run:ai, {count} requests", "http", runai))
    return rows


@contextmanager
def capped_disk(path: Path, bytes_per_second: int) -> Iterator[list[str]]:
    """Yield the beginning of a command whose process reads the disk of `path` at no more than this speed."""
    device = f"{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"
    is_unified = (GROUPS / "cgroup.controllers").exists()
    group = GROUPS / ("" if is_unified else "blkio") / f"streamer-bench-{os.getpid()}"
    group.mkdir()
    try:
        limit = f"{device} rbps={bytes_per_second}" if is_unified else f"{device} {bytes_per_second}"
        (group / ("io.max" if is_unified else "blkio.throttle.read_bps_device")).write_text(limit)
        yield ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


def make_tensorized(paths: Sequence[str]) -> Path | None:
    """Write the shards in tensorizer's format once, in a separate process; return None if it is not installed."""
    file = Path(tensorized(list(paths)))
    if not file.exists():
        script = (
            "import sys, tensorizer; from safetensors.torch import load_file; state = {}\n"
            "for path in sys.argv[2:]: state |= load_file(path)\n"
            "writer = tensorizer.TensorSerializer(sys.argv[1]); writer.write_state_dict(state); writer.close()"
        )
        done = subprocess.run([sys.executable, "-c", script, str(file), *paths], capture_output=True, check=False)
        if done.returncode != 0:
            file.unlink(missing_ok=True)
            return None
    return file


def run(name: str, shards: list[Path], rounds: int) -> list[Row]:
    """Run one experiment."""
    paths = [str(path) for path in shards]
    if name == "store":
        session = Session(shards, rounds, of_store())
        with PacedOrigin(shards[0].parents[1], Pace()) as origin:
            of_s3 = [f"s3://{path.parent.name}/{path.name}" for path in shards]
            return session.run_section(name, "http", Target(of_s3, origin.http_url))
    session = Session(shards, rounds, of_disks())
    file = make_tensorized(paths)
    session.other_files = [file] if file else []
    with capped_disk(shards[0], int(name.removeprefix("disk-")) * GIB) as session.run_by:
        return session.run_section(name, "file-cold", Target(paths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", default=",".join(TITLES), help="comma-separated, of: " + ", ".join(TITLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="size of the checkpoint (default 2 GiB)")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write an SVG of each experiment here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # raises, so that the group and children end
    folder = HERE.parent / ".bench" / f"model-{arguments.bytes}"
    shards = make_or_reuse(folder.resolve(), arguments.bytes, 4)
    results: dict[str, list[Row]] = {}
    for name in arguments.experiments.split(","):
        results[name] = run(name, shards, arguments.rounds)
        print(table(f"{TITLES[name]}, {arguments.bytes / 1e9:.2f} GB", results[name]), flush=True)
        if arguments.pictures:
            concurrency_picture(arguments.pictures / f"{name}.svg", TITLES[name], results[name])
    if arguments.json:
        arguments.json.write_text(json.dumps({name: [vars(row) for row in rows] for name, rows in results.items()}))


if __name__ == "__main__":
    main()
