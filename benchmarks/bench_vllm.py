"""Time vLLM's ``load_weights`` of a Llama, by load format: ours, Run:ai's with each engine, and vLLM's own.

    make .venv/.serving && PYTHONPATH=.venv/serving python benchmarks/bench_vllm.py [--gib 2] [--rounds 5] [--json FILE]

The model is in a folder in the page cache, and on a real S3 server on loopback. Every run is a fresh process, which
imports vLLM, creates the model on the CPU and touches memory before the clock starts; contestants alternate. All
parameters are compared by their digests afterwards. The peak of resident memory excludes the parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "tests")]

from llama import make_llama  # noqa: E402
from measure import MASK, Measurement, bring_into_page_cache, tensor_digest, touch_and_free  # noqa: E402

FORMATS = {  # contestant to load format
    "streamer": "streamer",
    "Run:ai": "runai_streamer",
    "Run:ai, our library": "runai_streamer",
    "vLLM": "safetensors",
}
LINE = "{:6}{:22}{:>8.2f}{:>8.2f}{:>8.2f}{:>16.2f}{:>10.2f}{:>10.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    from servers.seaweedfs import SeaweedServer

    with tempfile.TemporaryDirectory() as scratch, SeaweedServer() as server:
        folder = make_llama(Path(scratch) / "model", arguments.gib)
        server.make_bucket("bench")
        environment = {
            "AWS_ACCESS_KEY_ID": server.identity.access_key,
            "AWS_SECRET_ACCESS_KEY": server.identity.secret_key,
            "AWS_ENDPOINT_URL": server.endpoint_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ASSETS_CACHE": f"{scratch}/assets",
        }
        places = {"local": str(folder), "s3": server.upload_folder(folder, "bench", "model")}
        results = {
            place: measure(uri, environment, arguments.rounds, folder, [*FORMATS][: 4 if place == "local" else 3])
            for place, uri in places.items()
        }
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def measure(
    uri: str, environment: dict[str, str], rounds: int, folder: Path, names: list[str]
) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    shards = sorted(folder.glob("*.safetensors"))
    size_bytes = sum(path.stat().st_size for path in shards)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            bring_into_page_cache(shards)
            command = [sys.executable, __file__, "--child", name, uri, str(size_bytes)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
            )
            runs[name].append(json.loads(done.stdout.splitlines()[-1]) | {"size_bytes": size_bytes})
    if len({run["digest"] for each in runs.values() for run in each}) != 1:
        raise SystemExit("the contestants' parameters differ")
    return runs


def child(name: str, uri: str, size_bytes: str) -> None:
    from streamer.compat.runai import library_path

    if name == "Run:ai, our library":
        os.environ["STREAMER_LIBRARY"] = str(library_path())
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins
    from vllm_engine import config_of, created

    load_general_plugins()
    config = config_of(uri, FORMATS[name], dtype="bfloat16", use_tqdm_on_load=False)
    model = created(config)
    with set_current_vllm_config(config):
        loader = get_model_loader(config.load_config)
        parameters = sum(tensor.nbytes for tensor in model.parameters())  # parameters are not touched before
        touch_and_free(int(size_bytes), huge_pages=True)  # buffers
        touch_and_free(parameters, huge_pages=name == "streamer")
        with Measurement() as measured:
            loader.load_weights(model, config.model_config)
    digest = sum(tensor_digest(key, tensor.detach())[1] for key, tensor in model.named_parameters()) & MASK
    print(json.dumps(measured.to_dict() | {"digest": digest, "parameters_bytes": parameters}))


def report(results: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    print(f"{'':28}{'median s':>8}{'best':>8}{'max':>8}{'streamer / this':>16}{'CPU-s/GB':>10}{'peak MiB':>10}")
    for place, by_name in results.items():
        ours = statistics.median(run["seconds"] for run in by_name["streamer"])
        for name, runs in by_name.items():
            seconds = [run["seconds"] for run in runs]
            median = statistics.median(seconds)
            cpu = statistics.median(run["cpu_seconds"] / run["size_bytes"] * 1e9 for run in runs)
            peak = statistics.median(run["peak_rss_bytes"] - run["parameters_bytes"] for run in runs) / (1 << 20)
            print(LINE.format(place, name, median, min(seconds), max(seconds), ours / median, cpu, peak))


if __name__ == "__main__":
    main()
