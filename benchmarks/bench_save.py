"""Time ``streamer.save`` against safetensors' ``save_file`` (disk), and ``save_file`` and s3fs's ``put`` after it (S3).

    python benchmarks/bench_save.py [--gib 1] [--rounds 5] [--json out.json]

S3 is a real server on loopback. Every run is a fresh process that imports, makes its tensors and connects by writing a
small object before the clock starts; contestants alternate. `save` computes the digest of each tensor and flushes files
to the disk; `save_file` does neither, so it also runs with a flush behind it. What was written is compared, after the
clock, by its size and CRC32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from measure import Measurement, summary_of  # noqa: E402  its folder is no package

DISK = ("save to a disk", "save_file, flushed", "save_file")
S3 = ("save to S3", "save_file, s3fs.put")
TENSORS = 16
METADATA = {"format": "pt"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in DISK + S3}
    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        server.make_bucket("bench")
        for number in range(arguments.rounds):
            for names in (DISK, S3):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    runs[name].append(measured(name, arguments.gib, server.storage_options(), scratch))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the contestants' files differ")
    report(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2))


def measured(name: str, gib: float, options: dict[str, Any], scratch: str) -> dict[str, Any]:
    """Run one contestant in a process of its own."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        command = [sys.executable, __file__, "--child", name, str(gib), json.dumps(options), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run


def child(name: str, gib: str, options_text: str, folder: str) -> None:
    import torch

    torch.manual_seed(0)
    count = int(float(gib) * (1 << 30)) // TENSORS // 4
    tensors = {f"layer.{number}.weight": torch.randn(count) for number in range(TENSORS)}
    options = json.loads(options_text)
    run, written = _contestant(name, tensors, options, folder)
    with Measurement() as measurement:
        run()
    digest = size_bytes = 0
    for piece in written():
        digest, size_bytes = zlib.crc32(piece, digest), size_bytes + len(piece)
    print(json.dumps({**measurement.to_dict(), "digest": digest, "bytes": size_bytes}))


Contestant = tuple[Callable[[], object], Callable[[], list[bytes]]]


def _contestant(name: str, tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    """Return what is timed, and what reads the file that it wrote."""
    if "S3" in name or "s3fs" in name:
        return _to_s3(name, tensors, options, folder)
    return _to_disk(name, tensors, folder)


def _to_disk(name: str, tensors: dict[str, Any], folder: str) -> Contestant:
    from safetensors.torch import save_file

    import streamer

    file = f"{folder}/model.safetensors"

    def save() -> None:
        if name == "save to a disk":
            streamer.save(tensors, folder, progress=False)
            return
        save_file(tensors, file, METADATA)
        if "flushed" in name:
            with open(file, "rb") as saved:
                os.fsync(saved.fileno())

    streamer.save({"a": tensors["layer.0.weight"][:10].clone()}, f"{folder}/small")
    return save, lambda: [Path(file).read_bytes()]


def _to_s3(name: str, tensors: dict[str, Any], options: dict[str, Any], folder: str) -> Contestant:
    import fsspec
    from safetensors.torch import save_file

    import streamer

    file, remote = f"{folder}/model.safetensors", f"s3://bench/{Path(folder).name}/model.safetensors"
    fs = fsspec.filesystem("s3", **options)

    def save() -> None:
        if name == "save to S3":
            streamer.save(tensors, remote, storage_options=options, progress=False)
            return
        save_file(tensors, file, METADATA)
        fs.put_file(file, remote)

    def written() -> list[bytes]:
        fs.invalidate_cache()
        return [fs.cat_file(remote)]

    small = f"s3://bench/{Path(folder).name}-small"
    if name == "save to S3":
        streamer.save({"a": tensors["layer.0.weight"][:10].clone()}, small, storage_options=options)
    else:
        fs.pipe_file(small, b"{}")
    return save, written


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    medians = {name: statistics.median(run["seconds"] for run in each) for name, each in runs.items()}
    for name, each in runs.items():
        print(f"{name:20} {summary_of(each)}")
    for one, others in (("save to a disk", DISK[1:]), ("save to S3", S3[1:])):
        ratios = ", ".join(f"{medians[other] / medians[one]:.2f} x {other}" for other in others)
        print(f"{one}: {ratios}")


if __name__ == "__main__":
    main()
