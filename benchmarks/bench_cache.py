"""Time loads over S3 without a cache, with an empty one, and from a full one, beside loads of the same files from disk.

    python benchmarks/bench_cache.py [--gib 1] [--rounds 5] [--mb-per-s 0] [--cold] [--json out.json]

The server is nginx on loopback. Every run is a fresh process that imports and touches its memory before the clock
starts; the four kinds of load alternate. ``--mb-per-s`` limits the server, as a network would. ``--cold`` drops the
files of the cache and of the disk from the page cache before each run. The tensors are compared by a digest after the
clock has stopped. A load with an empty cache then waits until its cache is written, and the table shows the cached
share.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from checkpoint import make_or_reuse  # noqa: E402  its folder is no package
from measure import MASK, Measurement, drop_from_page_cache, summary_of, tensor_digest, touch_and_free  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402

KINDS = ("without", "first", "second", "disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb-per-s", type=float, default=0.0, help="limit of each connection; 0: none")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    NginxOrigin.connection_bytes = int(arguments.mb_per_s * 1e6)
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        make_or_reuse(root / "bucket", int(arguments.gib * (1 << 30)), 4)
        with NginxOrigin(root) as server:
            warm(server.http_url, f"{scratch}/full")
            for number in range(arguments.rounds):
                first = number % len(KINDS)
                for kind in KINDS[first:] + KINDS[:first]:
                    if arguments.cold:
                        drop_from_page_cache(path for path in Path(scratch).rglob("*") if path.is_file())
                    runs[kind].append(measured(server.http_url, scratch, kind))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the tensors differ")
    report(runs)
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=2))


def warm(url: str, folder: str) -> None:
    """Fill the cache of the second loads."""
    options = json.dumps(credentials(url))
    command = [sys.executable, "-m", "streamer", "cache", "warm", "s3://bucket", "--cache-dir", folder]
    subprocess.run([*command, "--storage-options", options, "--quiet"], check=True)


def credentials(url: str) -> dict[str, str]:
    return {"key": "k", "secret": "s", "endpoint_url": url}


def measured(url: str, scratch: str, kind: str) -> dict[str, Any]:
    """Run one load in a process of its own."""
    folder = f"{scratch}/{'first' if kind == 'first' else 'full'}"
    shutil.rmtree(f"{scratch}/first", ignore_errors=True)
    command = [sys.executable, __file__, "--child", url, f"{scratch}/root/bucket", folder, kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run


def child(url: str, files: str, folder: str, kind: str) -> None:
    import torch  # noqa: F401  before the clock starts

    import streamer
    from streamer import _native

    is_cached = kind in ("first", "second")
    options = streamer.Options(cache_dir=folder if is_cached else "")
    how = {} if kind == "disk" else {"storage_options": credentials(url)}
    touch_and_free(sum(path.stat().st_size for path in Path(files).iterdir()), huge_pages=True)
    with (
        Measurement() as measurement,
        streamer.stream(files if kind == "disk" else "s3://bucket", options=options, progress=False, **how) as stream,
    ):
        tensors = dict(stream)
    _native.finish_cache_writes(60)
    digests = [tensor_digest(name, tensor) for name, tensor in tensors.items()]
    written = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("data"))
    print(
        json.dumps(
            {
                **measurement.to_dict(),
                "digest": sum(each for _, each in digests) & MASK,
                "bytes": stream.report.bytes,
                "cached_bytes": stream.report.cached_bytes,
                "written_bytes": written if is_cached else 0,
            }
        )
    )


def report(runs: dict[str, list[dict[str, Any]]]) -> None:
    medians = {kind: statistics.median(run["seconds"] for run in each) for kind, each in runs.items()}
    for kind, each in runs.items():
        disk = statistics.median(run["disk_bytes"] for run in each) / (1 << 20)
        print(f"{kind:8} {summary_of(each)}  disk {disk:5.0f} MiB")
    share = statistics.median(run["written_bytes"] / run["bytes"] for run in runs["first"])
    print(f"first: {medians['without'] / medians['first']:.2f} x without; {share:.2f} of the checkpoint written")
    print(f"second: {medians['disk'] / medians['second']:.2f} x disk")


if __name__ == "__main__":
    main()
