"""Load unusual checkpoints: very many shards, very many tensors, and files of which half is in the page cache.

    make .venv/.bench && export PYTHONPATH=.venv/bench
    python benchmarks/bench_shapes.py [--shapes shards,tensors,half] [--rounds 7] [--only REGEX] [--json FILE]

Guarantees: as `bench_load.py`. ``shards`` are 1 000 files of 1 MB, and ``tensors`` are 100 000 tensors of 4 KiB in one
file; both are read from the page cache and over S3 on loopback. ``half`` is a checkpoint of 2 GiB with the first half
of each shard in the page cache. For ``half``, one row reads all bytes through the page cache, and one row reads all
bytes past it.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

import numpy as np
from bench_load import HERE, Session
from checkpoint import make_or_reuse, shard_paths
from contestants import CONTESTANTS, FILE, S3, Contestant, Target
from nginx_origin import NginxOrigin
from raw_programs import RAW_ROWS
from report import Row, table, write_results

FOLDER = HERE.parent / ".bench"
SHAPES = {
    "shards": "1 000 shards of 1 MB",
    "tensors": "100 000 tensors of 4 KiB in one object",
    "half": "The first half of each shard is in the page cache",
}
HALF_BYTES = 2 << 30
RIVALS = ("runai default", "runai sync_buffered", "runai io_uring_direct", "safetensors clone")


def many_shards() -> list[Path]:
    """Write 1 000 shards of four tensors."""
    folder = FOLDER / "shards-1000"
    if not shard_paths(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"model-{number:05}-of-01000.safetensors" for number in range(1, 1001)]
        for layer, name in enumerate(names):
            _write(folder / name, [f"layers.{layer}.{part}" for part in "qkvo"], 250_000)
    return shard_paths(folder)


def many_tensors() -> list[Path]:
    """Write 100 000 tensors to one file."""
    folder = FOLDER / "tensors-100000"
    if not shard_paths(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"layers.{number // 100}.experts.{number % 100}.weight" for number in range(100_000)]
        _write(folder / "model.safetensors", names, 4096)
    return shard_paths(folder)


def _write(path: Path, names: list[str], size_bytes: int) -> None:
    from safetensors.numpy import save_file

    data = np.random.default_rng(len(names[0])).integers(0, 256, (len(names), size_bytes), dtype=np.uint8)
    save_file(dict(zip(names, data, strict=True)), path)


def of_half() -> list[Contestant]:
    """List the rows: this project with each way of reading, and the rivals."""
    ours = CONTESTANTS["streamer load"]
    ways = {"streamer load": {}, "all buffered": {"STREAMER_DIRECT_IO": "0"}, "all direct": {"STREAMER_DIRECT_IO": "1"}}
    section = ("file-half",)
    rows = [
        Contestant(name, ours.run, ours.imports, section, environment, listed_as=ours.name)
        for name, environment in ways.items()
    ]
    rivals = [each for name, each in CONTESTANTS.items() if name in RIVALS]
    return rows + [
        Contestant(each.name, each.run, each.imports, section, each.environment, huge_pages=each.huge_pages)
        for each in rivals
    ]


def run(shape: str, rounds: int, only: re.Pattern[str]) -> dict[str, list[Row]]:
    """Run one shape in each of its sections."""
    if shape == "half":
        shards = make_or_reuse(FOLDER / f"model-{HALF_BYTES}", HALF_BYTES, 4)
        session = Session(shards, rounds, [each for each in of_half() if only.search(each.name)])
        return {"files": session.run_section(shape, "file-half", Target([str(path) for path in shards]))}
    shards = many_shards() if shape == "shards" else many_tensors()
    names = ("raw", "runai", "safetensors clone", "streamer load")
    rows = [each for each in (*RAW_ROWS, *CONTESTANTS.values()) if each.name.startswith(names)]
    # load_into's contestant cannot make tensors of every dtype.
    rows = [each for each in rows if "load_into" not in each.name and only.search(each.name)]
    session = Session(shards, rounds, rows)
    results = {"files": session.run_section(f"{shape}, files", FILE[0], Target([str(path) for path in shards]))}
    with NginxOrigin(FOLDER.resolve()) as origin:
        of_s3 = [f"s3://{path.parent.name}/{path.name}" for path in shards]
        results["S3"] = session.run_section(f"{shape}, S3", S3[0], Target(of_s3, origin.http_url))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated, of: " + ", ".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="contestants to run")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results here, as benchmarks/results has them"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # raises, so that nginx and the children end
    results = {}
    for shape in arguments.shapes.split(","):
        for place, rows in run(shape, arguments.rounds, arguments.only).items():
            results[f"{shape}, {place}"] = rows
            print(table(f"{SHAPES[shape]}, {place}", rows), flush=True)
    if arguments.json:
        write_results(arguments.json, results)


if __name__ == "__main__":
    main()
