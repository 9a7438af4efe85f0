"""Time the first and the second load of a process, with a checkpoint so small that only the start matters.

    python benchmarks/bench_start.py [--rounds 7] [--before PYTHON]

The checkpoint is in a folder, and on real servers of S3, Google Cloud Storage and Azure on loopback. S3 is also read
with keys that botocore's session finds, and with an option that needs botocore's client. Every run is a fresh process
that has imported torch before the clock starts. The table also shows how long Python's garbage collector ran in the
first load.
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
sys.path[:0] = [str(HERE.parents[0] / "tests")]

CHILD = """
import gc, json, os, time
import torch

collected = [0.0, 0.0]

def note(phase, info):
    if phase == "start":
        collected[1] = time.perf_counter()
    else:
        collected[0] += time.perf_counter() - collected[1]

gc.callbacks.append(note)
uri, options = os.environ["BENCH_URI"], json.loads(os.environ["BENCH_OPTIONS"])
times = [time.perf_counter()]
import streamer

for _ in range(2):
    assert streamer.load(uri, storage_options=options, progress=False)["a"].sum() == 10
    times.append(time.perf_counter())
    if len(times) == 2:
        in_first = collected[0]
print(json.dumps({"first": times[1] - times[0], "collector": in_first, "second": times[2] - times[1]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", help="the Python of another build")
    arguments = parser.parse_args()
    import safetensors.torch
    import torch
    from servers.azurite import AzuriteServer
    from servers.gcs_emulator import GcsServer
    from servers.seaweedfs import SeaweedServer

    pythons = {"now": sys.executable} | ({"before": arguments.before} if arguments.before else {})
    with (
        tempfile.TemporaryDirectory() as folder,
        SeaweedServer() as server,
        GcsServer() as gcs,
        AzuriteServer() as azure,
    ):
        safetensors.torch.save_file({"a": torch.ones(10)}, f"{folder}/model.safetensors")
        server.make_bucket("bench")
        gcs.make_bucket("bench")
        azure.make_container("bench")
        of_s3 = server.upload_folder(Path(folder), "bench", "model")
        places: dict[str, tuple[str, Any]] = {
            "local": (folder, None),
            "s3": (of_s3, server.storage_options()),
            "s3, keys found": (of_s3, with_profile(server.storage_options(), Path(folder))),
            "s3, botocore's": (of_s3, {**server.storage_options(), "config_kwargs": {"max_pool_connections": 10}}),
            "gs": (gcs.upload_folder(Path(folder), "bench", "model"), gcs.storage_options()),
            "az": (azure.upload_folder(Path(folder), "bench", "model"), azure.storage_options()),
        }
        for place, (uri, options) in places.items():
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
            for _ in range(arguments.rounds):
                for name, python in pythons.items():
                    runs[name].append(measured(python, uri, options))
            for name, each in runs.items():
                print(f"{place:16}{name:8}" + "  ".join(shown(each, part) for part in ("first", "collector", "second")))


def with_profile(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replace the keys in options by a profile whose process prints them, as a server provides keys of a role."""
    named = {"Version": 1, "AccessKeyId": options.pop("key"), "SecretAccessKey": options.pop("secret")}
    (folder / "keys.json").write_text(json.dumps(named))
    (folder / "config").write_text(f"[profile found]\ncredential_process = cat {folder}/keys.json\n")
    os.environ["AWS_CONFIG_FILE"] = f"{folder}/config"
    return {**options, "profile": "found"}


def measured(python: str, uri: str, options: Any) -> dict[str, float]:
    environment = {**os.environ, "BENCH_URI": uri, "BENCH_OPTIONS": json.dumps(options)}
    done = subprocess.run([python, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def shown(runs: list[dict[str, float]], part: str) -> str:
    values = sorted(1e3 * run[part] for run in runs)
    return f"{part} {statistics.median(values):4.0f} ms ({values[0]:.0f} to {values[-1]:.0f})"


if __name__ == "__main__":
    main()
