"""Time ``streamer::s3://…`` against s3fs itself: the same calls of fsspec on the same object.

    python benchmarks/bench_fsspec.py [--gib 0.5] [--rounds 5] [--rows readinto,read] [--json out.json]

The object is on a real S3 server on loopback. Every run is a fresh process that imports, reads another object and
touches its memory before the clock starts; contestants alternate. The bytes that were read are compared by their digest
after the clock has stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from measure import Measurement, summary_of, touch_and_free  # noqa: E402  its folder is no package

CONTESTANTS = ("ours", "s3fs")
PREFIX = {"ours": "streamer::", "s3fs": ""}
PIECE_BYTES = 8 << 20
RANGES, RANGE_BYTES = 1000, 64 << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        folder = Path(scratch) / "data"
        folder.mkdir()
        size_bytes = round(arguments.gib * (1 << 30))
        numbers = random.Random(0)
        with (folder / "large").open("wb") as file:
            for _ in range(0, size_bytes, 1 << 20):
                file.write(numbers.randbytes(1 << 20))
        (folder / "small").write_bytes(b"small")
        server.make_bucket("bench")
        uri = server.upload_folder(folder, "bench", "data")
        options = server.storage_options()
        results = {
            row: measure(row, uri, options, arguments.rounds, folder, size_bytes) for row in arguments.rows.split(",")
        }
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def measure(
    row: str, uri: str, options: dict[str, Any], rounds: int, folder: Path, size_bytes: int
) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in CONTESTANTS[number % 2 :] + CONTESTANTS[: number % 2]:
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                given = [name, row, uri, json.dumps(options), scratch]
                command = [sys.executable, __file__, "--gib", str(size_bytes / (1 << 30)), "--child", *given]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit(f"{row}: the contestants' bytes differ")
    return runs


def child(name: str, row: str, uri: str, options_text: str, scratch: str) -> None:
    import fsspec

    options, own = json.loads(options_text), PREFIX[name]
    with fsspec.open(f"{own}{uri}/small", s3=options) if own else fsspec.open(f"{uri}/small", **options) as file:
        fs = file.fs
        assert file.read() == b"small"
    path = uri.removeprefix("s3://") + "/large"
    size_bytes = fs.size(path)
    fs.invalidate_cache()
    target = bytearray(0)
    if row == "readinto":
        target = bytearray(size_bytes)
        target[::4096] = b"\1" * len(target[::4096])
    # Each contestant uses pages of both sizes, and the page cache of a copy uses small pages.
    for huge_pages in (True, False):
        touch_and_free(size_bytes, huge_pages=huge_pages)
    with Measurement() as measured:
        found = ROWS[row](Run(fs, path, target, scratch))
    digest = 0
    for part in found() if callable(found) else found:
        digest = zlib.crc32(part, digest)
    read_bytes = RANGES * RANGE_BYTES if row == "cat_ranges" else size_bytes
    print(json.dumps({**measured.to_dict(), "digest": digest, "bytes": read_bytes}))


@dataclass(frozen=True)
class Run:
    """A path that a row reads from a file system, into memory or a folder."""

    fs: Any
    path: str
    target: bytearray
    scratch: str


def readinto(run: Run) -> list[bytearray]:
    with run.fs.open(run.path, "rb") as file:
        assert file.readinto(run.target) == len(run.target)
    return [run.target]


def read(run: Run) -> list[bytes]:
    """Read piece by piece. Digests would take most of the time, so one byte in 4096 is kept for comparison."""
    kept = []
    with run.fs.open(run.path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            kept.append(piece[::4096])
    return [b"".join(kept)]


def cat_file(run: Run) -> list[bytes]:
    return [run.fs.cat_file(run.path)]


def cat_ranges(run: Run) -> list[bytes]:
    numbers = random.Random(1)
    starts = [numbers.randrange(0, (256 << 20) - RANGE_BYTES) for _ in range(RANGES)]
    parts: list[bytes] = run.fs.cat_ranges(
        [run.path] * RANGES, starts, [start + RANGE_BYTES for start in starts], on_error="raise"
    )
    return parts


def get_file(run: Run) -> Callable[[], list[bytes]]:
    run.fs.get_file(run.path, f"{run.scratch}/copy")
    return lambda: [Path(run.scratch, "copy").read_bytes()]


ROWS: dict[str, Callable[..., Any]] = {
    "readinto": readinto,
    "read": read,
    "cat_file": cat_file,
    "cat_ranges": cat_ranges,
    "get_file": get_file,
}


def report(results: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    for row, runs in results.items():
        medians = {name: statistics.median(run["seconds"] for run in each) for name, each in runs.items()}
        for name, each in runs.items():
            print(f"{row:11}{name:5} {summary_of(each)}  s3fs / this {medians['s3fs'] / medians[name]:5.2f}")


if __name__ == "__main__":
    main()
