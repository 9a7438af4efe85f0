"""Time ``python -m streamer pull`` and ``s3fs.get``: both copy the same folder of an S3 server to the same disk.

    python benchmarks/bench_pull.py [--gib 1] [--files 4] [--rounds 5] [--json out.json]

A real S3 server runs on loopback. Every run is a fresh process that imports, and connects by reading a small object,
before the clock starts; contestants alternate. A pull verifies the bytes and flushes them to the disk. s3fs does
neither, so a second row flushes each file after s3fs. The written files are compared after the clock has stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from measure import Measurement, summary_of  # noqa: E402  its folder is no package

CONTESTANTS = ("pull", "pull --no-verify", "s3fs.get, flushed", "s3fs.get")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        folder = Path(scratch) / "model"
        make_files(folder, round(arguments.gib * (1 << 30)) // arguments.files, arguments.files)
        server.make_bucket("bench")
        server.put("bench", "small/config.json", b"{}")
        uri = server.upload_folder(folder, "bench", "model")
        runs = measure(uri, server.storage_options(), arguments.rounds, Path(scratch))
    report(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2))


def make_files(folder: Path, size_bytes: int, files: int) -> None:
    """Write files that no storage can compress."""
    folder.mkdir()
    numbers = random.Random(0)
    for number in range(files):
        with (folder / f"model-{number + 1:05}-of-{files:05}.safetensors").open("wb") as file:
            for _ in range(0, size_bytes, 1 << 20):
                file.write(numbers.randbytes(1 << 20))
    (folder / "config.json").write_text("{}")


def measure(uri: str, options: dict[str, Any], rounds: int, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        first = number % len(CONTESTANTS)
        for name in CONTESTANTS[first:] + CONTESTANTS[:first]:
            with tempfile.TemporaryDirectory(dir=scratch) as target:
                command = [sys.executable, __file__, "--child", name, uri, json.dumps(options), target]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the contestants' files differ")
    return runs


def child(name: str, uri: str, options_text: str, target: str) -> None:
    copy = Path(target) / "copy"
    small = uri.rpartition("/")[0] + "/small"
    if name.startswith("pull"):
        from streamer._cli import main as command

        more = ["--quiet", "--storage-options", options_text, *name.split()[1:]]
        command(["pull", small, str(Path(target) / "small"), *more], standalone_mode=False)
        with Measurement() as measured:
            status = command(["pull", uri, str(copy), *more], standalone_mode=False)
        assert status == 0
    else:
        import fsspec

        fs = fsspec.filesystem("s3", **json.loads(options_text))
        fs.get(f"{small}/", str(Path(target) / "small"), recursive=True)
        with Measurement() as measured:
            fs.get(f"{uri}/", f"{copy}/", recursive=True)
            if name.endswith("flushed"):
                flush(copy)
    files = sorted(each for each in copy.iterdir() if each.is_file())
    digest = 0
    for each in files:
        digest = zlib.crc32(each.name.encode() + each.read_bytes(), digest)
    size_bytes = sum(each.stat().st_size for each in files)
    print(json.dumps({**measured.to_dict(), "digest": digest, "bytes": size_bytes}))


def flush(folder: Path) -> None:
    for each in folder.iterdir():
        with each.open("rb") as file:
            os.fsync(file.fileno())


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    for name, each in runs.items():
        print(f"{name:18} {summary_of(each)}")


if __name__ == "__main__":
    main()
