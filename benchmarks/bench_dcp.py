"""Time ``torch.distributed.checkpoint.load`` into existing tensors, with our reader and with torch's readers.

    python benchmarks/bench_dcp.py [--gib 0.5] [--rounds 5] [--json out.json]

A checkpoint of `dcp.save` in bfloat16, from a folder in the page cache, and from a real S3 server on loopback. Every
run is a fresh process that imports everything, loads a tiny checkpoint, and touches the memory of its tensors and of
the loader before the clock starts; contestants alternate. All tensors are compared by their digests after the clock has
stopped. `file` is torch's reader for local files, `fsspec` is torch's reader for any URL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from measure import MASK, Measurement, bring_into_page_cache, tensor_digest, touch_and_free  # noqa: E402  no package

CONTESTANTS = {"local": ("ours", "fsspec", "file"), "s3": ("ours", "fsspec")}
WIDTH = 2048
LAYER_BYTES = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * 4 * WIDTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        folder = Path(scratch) / "step"
        layers = max(1, round(arguments.gib * (1 << 30) / LAYER_BYTES))
        save(folder, layers, WIDTH)
        server.make_bucket("bench")
        places = {"local": str(folder), "s3": server.upload_folder(folder, "bench", "step")}
        options = server.storage_options()
        results = {name: measure(name, uri, options, layers, arguments.rounds) for name, uri in places.items()}
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def shapes(layers: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder's tensors: matrices, and small vectors between them."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for name in "qkvo":
            found[f"layers.{layer}.attention.{name}"] = (width, width)
        for name in ("gate", "up", "down"):
            found[f"layers.{layer}.mlp.{name}"] = (4 * width, width)
        for name in ("attention", "mlp"):
            found[f"layers.{layer}.norm.{name}"] = (width,)
    return found


def save(folder: Path, layers: int, width: int) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {name: torch.rand(shape).bfloat16() for name, shape in shapes(layers, width).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there are no other processes
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)


def measure(place: str, uri: str, options: dict[str, Any], layers: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    names = CONTESTANTS[place]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if place == "local":
                bring_into_page_cache(sorted(Path(uri).glob("*.distcp")))
            command = [sys.executable, __file__, "--child", name, uri, json.dumps(options), str(layers)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    if len({result["digest"] for each in results.values() for result in each}) != 1:
        raise SystemExit("the contestants' tensors differ")
    return results


def child(name: str, uri: str, options_text: str, layers: str) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    options = json.loads(options_text) if uri.startswith("s3:") else {}
    if options:
        import s3fs  # noqa: F401  takes half a second, whoever reads
    with tempfile.TemporaryDirectory() as scratch:
        save(Path(scratch) / "tiny", 1, 8)
        tiny = {key: torch.zeros(shape, dtype=torch.bfloat16) for key, shape in shapes(1, 8).items()}
        dcp.load(tiny, storage_reader=reader(name, f"{scratch}/tiny", {}), no_dist=True)
    state = {key: torch.ones(shape, dtype=torch.bfloat16) for key, shape in shapes(int(layers), WIDTH).items()}
    size_bytes = sum(tensor.nbytes for tensor in state.values())
    touch_and_free(size_bytes, huge_pages=name == "ours")
    with Measurement() as measurement:
        dcp.load(state, storage_reader=reader(name, uri, options), no_dist=True)
    digest = sum(tensor_digest(key, tensor)[1] for key, tensor in state.items()) & MASK
    print(json.dumps({**measurement.to_dict(), "bytes": size_bytes, "digest": digest}))


def reader(name: str, uri: str, options: dict[str, Any]) -> Any:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    import streamer

    if name == "ours":
        return streamer.dcp.StorageReader(uri, storage_options=options)
    return FileSystemReader(uri) if name == "file" else FsspecReader(uri, **options)


def report(results: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    for place, by_name in results.items():
        medians = {name: statistics.median(each["seconds"] for each in runs) for name, runs in by_name.items()}
        for name, runs in by_name.items():
            seconds = [each["seconds"] for each in runs]
            gigabytes = runs[0]["bytes"] / 1e9
            cpu = statistics.median(each["cpu_seconds"] for each in runs) / gigabytes
            peak = statistics.median(each["peak_rss_bytes"] for each in runs) / 1e6
            print(
                f"{place:6}{name:8}median {medians[name]:6.3f} s  ({min(seconds):.3f} to {max(seconds):.3f})"
                f"  ours / this {medians['ours'] / medians[name]:5.2f}  {cpu:5.2f} CPU-s/GB  peak {peak:6.0f} MB"
            )


if __name__ == "__main__":
    main()
