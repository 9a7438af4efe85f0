"""Time vLLM from the start of its process until the model is filled, for each loader of the weights.

    make .venv/.serving .venv/.bench && export PYTHONPATH=.venv/serving:.venv/bench
    python benchmarks/bench_ready.py [--gib 2] [--rounds 5] [--picture SVG]

The model is a Llama on the CPU, from cold files on a disk of 1 GiB/s (limited by a control group, which needs root) and
from a store of 90 MB/s for each connection. The clock starts before the process does; imports, configuration and
creation of the model are the same for all. The clock stands still while memory is touched, before the weights are
loaded: the host of a virtual machine is slow to provide memory that was never used. Each row has its own process,
contestants alternate, and all parameters are compared by their digests afterwards. vLLM itself cannot read the store:
in its row, s3fs fetches the folder first, as a container's start script would.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from bench_experiments import capped_disk  # noqa: E402
from llama import make_llama  # noqa: E402
from measure import MASK, drop_from_page_cache, tensor_digest, touch_and_free  # noqa: E402
from nginx_origin import NginxOrigin  # noqa: E402
from pictures import phases_picture  # noqa: E402

FORMATS = {"streamer": "streamer", "Run:ai": "runai_streamer", "vLLM": "safetensors", "s3fs, then vLLM": "safetensors"}
PLACES = {
    "disk": ("Cold files on a disk of 1 GiB/s", ("streamer", "Run:ai", "vLLM")),
    "store": ("A store of 90 MB/s for each connection", ("streamer", "Run:ai", "s3fs, then vLLM")),
}
DISK_BYTES_PER_S = 1 << 30
CONNECTION_BYTES_PER_S = 90_000_000
PHASES = ("start", "weights")
LINE = "{:18}{:>10.2f}{:>10.2f}{:>10.2f}{:>14.2f}{:>14.2f}"


class SlowOrigin(NginxOrigin):
    """A store that needs many connections."""

    connection_bytes = CONNECTION_BYTES_PER_S


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="write an SVG here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    with tempfile.TemporaryDirectory(dir=HERE.parent / ".bench") as scratch:
        folder = make_llama(Path(scratch) / "root" / "llama", arguments.gib)
        with SlowOrigin(folder.parent) as origin, capped_disk(folder, DISK_BYTES_PER_S) as run_by:
            environment = {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_ENDPOINT_URL": origin.http_url,
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
                "VLLM_LOGGING_LEVEL": "ERROR",
                "VLLM_ASSETS_CACHE": f"{scratch}/assets",
            }
            results = {
                "disk": measure("disk", str(folder), folder, environment, arguments.rounds, run_by),
                "store": measure("store", "s3://llama", folder, environment, arguments.rounds, []),
            }
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    if arguments.picture:
        phases_picture(arguments.picture, {PLACES[place][0]: medians(runs) for place, runs in results.items()})


def measure(
    place: str, uri: str, folder: Path, environment: dict[str, str], rounds: int, run_by: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    names = PLACES[place][1]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    shards = sorted(folder.glob("*.safetensors"))
    for number in range(rounds + 1):  # the first round brings Python's files into the page cache, and does not count
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if place == "disk":
                drop_from_page_cache(shards)
            began = time.monotonic()
            command = [*run_by, sys.executable, __file__, "--child", name, uri, str(began)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
            )
            if number:
                runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the contestants' parameters differ")
    return runs


def child(name: str, uri: str, began: str) -> None:
    fetch_s = 0.0
    with tempfile.TemporaryDirectory() as fetched:
        if name == "s3fs, then vLLM":
            import s3fs

            before = time.monotonic()
            uri_fetched = f"{fetched}/model"
            s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"]).get("llama", uri_fetched, recursive=True)
            uri, fetch_s = uri_fetched, time.monotonic() - before
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.plugins import load_general_plugins
        from vllm_engine import config_of, created

        load_general_plugins()
        config = config_of(uri, FORMATS[name], dtype="bfloat16", use_tqdm_on_load=False)
        model = created(config)
        start_s = time.monotonic() - float(began) - fetch_s
        size_bytes = sum(tensor.nbytes for tensor in model.parameters())  # parameters are not touched before
        touch_and_free(2 * size_bytes, huge_pages=name == "streamer")  # while the clock stands still
        with set_current_vllm_config(config):
            loader = get_model_loader(config.load_config)
            before = time.monotonic()
            loader.load_weights(model, config.model_config)
            weights_s = time.monotonic() - before + fetch_s
    digest = sum(tensor_digest(key, tensor.detach())[1] for key, tensor in model.named_parameters()) & MASK
    print(json.dumps({"start": start_s, "weights": weights_s, "ready": start_s + weights_s, "digest": digest}))


def medians(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    return {
        name: {phase: statistics.median(run[phase] for run in each) for phase in PHASES} for name, each in runs.items()
    }


def report(results: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    for place, runs in results.items():
        print(f"\n{PLACES[place][0]}; seconds, medians")
        print(f"{'':18}{'ready':>10}{'best':>10}{'max':>10}{'weights':>14}{'start':>14}")
        for name, each in runs.items():
            ready = [run["ready"] for run in each]
            phases = [statistics.median(run[phase] for run in each) for phase in reversed(PHASES)]
            print(LINE.format(name, statistics.median(ready), min(ready), max(ready), *phases))


if __name__ == "__main__":
    main()
