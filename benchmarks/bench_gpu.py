"""Measure loads to one CUDA device: this project, the limits of the machine, and every installed rival.

    python benchmarks/bench_gpu.py [--gib 8] [--rounds 5] [--sections tmpfs,warm,cold,http] [--json out.json]

Runs from a checkout with torch, numpy and this package installed, without a network; rivals that are not installed are
listed as such. The limits are measured in the same run: pinned memory to the device, and the page cache to pinned
memory. Every run is a fresh process; contestants alternate. After the clock has stopped, every tensor is copied back
and compared with the bytes that numpy reads from the files. `--device cpu` tests the script on a machine without a GPU;
its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from checkpoint import expected_tensors, make_or_reuse  # noqa: E402  its folder is not a package
from gpu_contestants import COLD_BY_RING, CONTESTANTS, OVER_HTTP  # noqa: E402
from gpu_limits import page_cache_gb_per_s, pinned_copy_gb_per_s  # noqa: E402
from gpu_report import print_report  # noqa: E402
from measure import MASK, Measurement, bring_into_page_cache, drop_from_page_cache, tensor_digest  # noqa: E402

NOT_INSTALLED = 3
SECTIONS = ("tmpfs", "warm", "cold", "http")
TIMEOUT_S = 600
OTHERS_SETTINGS = ("STREAMER_", "RUNAI_", "FASTSAFETENSORS_", "INSTANTTENSOR_")  # not passed on


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=8, help="size of the checkpoint")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child[0], arguments.child[1:], arguments.device)
        return
    if unknown := set(arguments.sections.split(",")) - set(SECTIONS):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    _check_device(arguments.device)
    results = _run(arguments)
    print_report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if any(
        row.get("error") for rows in results["sections"].values() for row in rows if row["name"].startswith("strea")
    ):
        sys.exit(1)


def _check_device(device: str) -> None:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here, or torch is not built for CUDA: nothing was measured")


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": _machine(arguments.device), "command": " ".join(sys.argv), "sections": {}}
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        paths = make_or_reuse(disk / "model", int(arguments.gib * 2**30), arguments.shards)
        expected = expected_tensors(paths)
        bring_into_page_cache(paths)
        results["bytes"] = expected["bytes"]
        results["limits"] = {
            "pinned copy": pinned_copy_gb_per_s(arguments.device),
            "page cache to memory": page_cache_gb_per_s(paths),
        }
        for section in arguments.sections.split(","):
            results["sections"][section] = _section(section, paths, expected, arguments, stack)
    return results


def _section(
    section: str, paths: list[Path], expected: dict[str, int], arguments: argparse.Namespace, stack: ExitStack
) -> list[dict[str, Any]]:
    where = [str(path) for path in paths]
    if section == "tmpfs":
        where = stack.enter_context(_on_tmpfs(paths))
    if section == "http":
        where = stack.enter_context(_served(paths[0].parent, [path.name for path in paths]))
    names = _names_of(section)
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "runs": []} for name in names}
    for _ in range(arguments.rounds):
        for name in random.sample(names, len(names)):
            if rows[name].get("error"):
                continue
            (drop_from_page_cache if section == "cold" else bring_into_page_cache)(paths)
            found = _run_once(name, where, arguments.device)
            if not found.get("error") and any(found[key] != expected[key] for key in expected):
                found["error"] = "returned wrong tensors"
            if found.get("error"):
                rows[name]["error"] = found["error"]
            else:
                rows[name]["runs"].append(found)
    return list(rows.values())


def _names_of(section: str) -> list[str]:
    if section == "http":
        return list(OVER_HTTP)
    return [name for name in CONTESTANTS if section == "cold" or name != COLD_BY_RING]


def _run_once(name: str, paths: list[str], device: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), "--device", device, "--child", name, *paths]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS_SETTINGS)}
    environment = kept | CONTESTANTS[name].environment
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT_S} s"}
    if done.returncode == NOT_INSTALLED:
        return {"error": "not installed"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(name: str, paths: list[str], device: str) -> None:
    """Load once in this process, and print one JSON line."""
    import torch

    _prepare(torch, device)
    try:
        contestant = CONTESTANTS[name]
        for module in contestant.imports:
            importlib.import_module(module)
        with Measurement() as measured:
            tensors = list(contestant.load(paths, device))
            if device.startswith("cuda"):
                torch.cuda.synchronize()
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    found: dict[str, Any] = {"bytes": 0, "digest": 0, "tensors": len(tensors)}
    for tensor_name, tensor in tensors:
        if tensor.device != torch.device(device):
            raise SystemExit(f"{tensor_name} is on {tensor.device}, not on {device}")
        size, value = tensor_digest(tensor_name, tensor.cpu())
        found["bytes"] += size
        found["digest"] = (found["digest"] + value) & MASK
    peak_device = torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0
    print(json.dumps(found | measured.to_dict() | {"peak_device_bytes": peak_device} | _details(name, paths, device)))


def _prepare(torch: Any, device: str) -> None:
    """Create the device's context: every server has one before it loads weights."""
    if device.startswith("cuda"):
        torch.empty(1 << 20, device=device)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _details(name: str, paths: list[str], device: str) -> dict[str, Any]:
    """Return figures that only this project reports: device path, pinned memory, and time to the first tensor."""
    if name != "streamer load":
        return {}
    import streamer

    started = time.perf_counter()
    with streamer.stream(paths, device=device, progress=False) as tensors:
        next(tensors)
        first_s = time.perf_counter() - started
        report = tensors.report
    return {"first_tensor_s": first_s, "device_path": report.device_path, "peak_pinned_bytes": report.peak_pinned_bytes}


@contextmanager
def _on_tmpfs(paths: list[Path]) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        copies = []
        for path in paths:
            copy = Path(folder) / path.name
            copy.write_bytes(path.read_bytes())
            copies.append(str(copy))
        yield copies


@contextmanager
def _served(folder: Path, names: list[str]) -> Iterator[list[str]]:
    command = [sys.executable, str(HERE / "range_server.py"), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        port = int(server.stdout.readline())
        try:
            yield [f"http://127.0.0.1:{port}/{name}" for name in names]
        finally:
            server.stdin.close()
            server.wait(10)


def _machine(device: str) -> dict[str, Any]:
    import torch

    cuda = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "NO GPU: these figures mean nothing",
        "torch": torch.__version__,
        "processors": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


if __name__ == "__main__":
    main()
