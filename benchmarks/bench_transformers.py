"""Time ``from_pretrained`` until every parameter is touched: ours, the original, and `streamer.load` for comparison.

    python benchmarks/bench_transformers.py [--gib 0.5] [--rounds 5] [--json out.json]

The model is in a folder in the page cache, and on a real S3 server on loopback; from S3, the original first downloads
with s3fs. Every run is a fresh process that imports, loads a tiny model and touches its memory before the clock starts;
contestants alternate. The original maps files, so each contestant reads a byte of every page of every parameter before
the clock stops. All tensors are compared by their digests afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from llama import make_llama  # noqa: E402
from measure import MASK, bring_into_page_cache, tensor_digest, touch_and_free  # noqa: E402  its folder is no package

CONTESTANTS = ("ours", "original", "load")
PAGE_BYTES = 4096


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
        folder = make_llama(Path(scratch) / "model", arguments.gib)
        server.make_bucket("bench")
        options = server.storage_options()
        places = {"local": str(folder), "s3": server.upload_folder(folder, "bench", "model")}
        results = {name: measure(uri, options, arguments.rounds, folder) for name, uri in places.items()}
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def measure(uri: str, options: dict[str, Any], rounds: int, folder: Path) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    digests = set()
    for number in range(rounds):
        for name in CONTESTANTS[number % 3 :] + CONTESTANTS[: number % 3]:
            bring_into_page_cache(sorted(folder.glob("*.safetensors")))
            size_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            command = [sys.executable, __file__, "--child", name, uri, json.dumps(options), str(size_bytes)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            seconds[name].append(result["seconds"])
            digests.add(result["digest"])
    if len(digests) != 1:
        raise SystemExit("the contestants' tensors differ")
    return seconds


def child(name: str, uri: str, options_text: str, size_bytes: str) -> None:
    import torch
    from s3fs import S3FileSystem
    from transformers import LlamaForCausalLM

    import streamer

    options = json.loads(options_text) if uri.startswith("s3:") else None
    with tempfile.TemporaryDirectory() as scratch:
        tiny = make_llama(Path(scratch) / "tiny", 0)  # transformers imports most modules when it loads a model
        LlamaForCausalLM.from_pretrained(tiny)
        touch_and_free(int(size_bytes), huge_pages=name != "original")
        started = time.perf_counter()
        if name == "load":
            tensors = streamer.load(uri, storage_options=options, progress=False)
        elif name == "ours":
            model = streamer.transformers.from_pretrained(LlamaForCausalLM, uri, storage_options=options)
            tensors = dict(model.state_dict())
        else:
            if options is not None:
                S3FileSystem(**options).get(uri, scratch, recursive=True)
                uri = str(Path(scratch, uri.rpartition("/")[2]))
                uri = uri if Path(uri).is_dir() else scratch
            model = LlamaForCausalLM.from_pretrained(uri)
            tensors = dict(model.state_dict())
        for tensor in tensors.values():
            tensor.detach().reshape(-1).view(torch.uint8)[::PAGE_BYTES].sum()
        seconds = time.perf_counter() - started
        digest = sum(tensor_digest(key, tensor)[1] for key, tensor in tensors.items()) & MASK
    print(json.dumps({"seconds": seconds, "digest": digest}))


def report(results: dict[str, dict[str, list[float]]]) -> None:
    for place, seconds in results.items():
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        for name, each in seconds.items():
            ratio = medians["ours"] / medians[name]
            spread = f"{min(each):.2f} to {max(each):.2f}"
            print(f"{place:6}{name:10}median {medians[name]:6.2f} s  ({spread})  ours / this {ratio:5.2f}")


if __name__ == "__main__":
    main()
