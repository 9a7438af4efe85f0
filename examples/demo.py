"""Load one checkpoint from disk and from a real S3 server, check every tensor, and show time and memory.

Guarantees: each loader runs in a process of its own, so that its time, processor time and peak memory are measured
alone. The process touches memory first, and then loads twice. Every tensor of both loads (dtype, shape, every byte) is
compared with the tensor that safetensors' own reader returns. If a tensor differs, the script prints its name and exits
with 1.

    python examples/demo.py [--size 1GiB] [--folder DIR] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from make_checkpoint import make_checkpoint, parse_size

# Modules outside the package: the S3 server of the tests, and the preparation of the benchmarks.
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from measure import touch_and_free  # noqa: E402
from servers.seaweedfs import SeaweedServer  # noqa: E402

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Source:
    """One row of the table: the loader, the source and its options."""

    label: str
    loader: str
    uri: str
    storage_options: dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """The figures of a process: seconds of both loads; the other figures are of the first load.

    Memory is resident memory, including mapped file pages, without the memory that the process held before the load.
    """

    seconds: list[float]
    cpu_seconds: float
    peak_bytes: int
    tensor_bytes: int
    tensors: int
    wrong: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="Load a checkpoint from disk and from S3, and check every byte.")
    parser.add_argument("--size", type=parse_size, default=1 << 30, help="bytes of tensors (default: 1GiB)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="where checkpoints are kept")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each source, in turn (default: 3)")
    arguments = parser.parse_args()
    folder = arguments.folder / f"checkpoint-{arguments.size}"
    make_checkpoint(folder, arguments.size, reuse=True, progress=True)
    with SeaweedServer() as server:
        print(f"uploading to {server.endpoint_url} ...", flush=True)
        server.make_bucket("models")
        uri = server.upload_folder(folder, "models", "demo")
        sources = [
            Source("streamer, disk", "streamer", str(folder), {}),
            Source("streamer, S3", "streamer", uri, server.storage_options()),
            Source("safetensors + clone, disk", "safetensors", str(folder), {}),
        ]
        costs = _measure_in_turn(sources, folder, arguments.rounds)
    _print_table(costs)
    return _verdict(costs)


def _measure_in_turn(sources: list[Source], folder: Path, rounds: int) -> dict[str, list[Cost]]:
    """Load from each source once per round; each round reverses the order, so that a drift affects all sources."""
    costs: dict[str, list[Cost]] = {source.label: [] for source in sources}
    for round_number in range(rounds):
        for source in sources[:: -1 if round_number % 2 else 1]:
            if round_number == 0:
                print(f"loading: {source.label}", flush=True)
            costs[source.label].append(_measure_in_subprocess(source, folder, show_bar=round_number == 0))
    return costs


def _measure_in_subprocess(source: Source, folder: Path, *, show_bar: bool) -> Cost:
    touch_bytes = sum(file.stat().st_size for file in folder.iterdir()) * 5 // 4  # a quarter more for the loader itself
    request = {"source": asdict(source), "folder": str(folder), "show_bar": show_bar, "touch_bytes": touch_bytes}
    answer = subprocess.run(
        [sys.executable, __file__, "--measure"],
        input=json.dumps(request),  # not an argument: the list of processes would show keys
        stdout=subprocess.PIPE,  # the bar goes to standard error, which is still the terminal
        text=True,
        check=True,
    )
    return Cost(**json.loads(answer.stdout))


def _print_table(costs: dict[str, list[Cost]]) -> None:
    rounds = len(next(iter(costs.values())))
    print(f"\n{rounds} processes each, in turn; files in the page cache, the server on the same processors")
    print("GB/s of the first and the second load of a process: median (best)")
    print(f"{'source':<27}{'first':>15}{'second':>15}{'CPU-s/GB':>10}{'peak MiB':>10}")
    for label, runs in costs.items():
        gigabytes = runs[0].tensor_bytes / 1e9
        speeds = [[gigabytes / run.seconds[load] for run in runs] for load in (0, 1)]
        first, second = (f"{statistics.median(each):.2f} ({max(each):.2f})" for each in speeds)
        cpu = statistics.median(run.cpu_seconds for run in runs) / gigabytes
        peak = max(run.peak_bytes for run in runs) >> 20
        print(f"{label:<27}{first:>15}{second:>15}{cpu:>10.2f}{peak:>10}")
    print(f"{'(the tensors themselves)':<67}{runs[0].tensor_bytes >> 20:>10}\n")


def _verdict(costs: dict[str, list[Cost]]) -> int:
    runs = [(label, run) for label, several in costs.items() for run in several]
    wrong = sorted({f"{label}: {name}" for label, run in runs for name in run.wrong})
    if wrong:
        print("these differ:", *wrong, sep="\n  ")
        return 1
    print(f"every one of {runs[0][1].tensors} tensors equal, in each of {2 * len(runs)} loads")
    return 0


# --- in the measured process ----------------------------------------------------------------------------------------


def _answer_measurement() -> None:
    request = json.load(sys.stdin)
    source = Source(**request["source"])
    load = LOADERS[source.loader]()  # imports what it needs, before the clock starts
    # In a virtual machine, the first touch of memory would measure the host, not the loader.
    touch_and_free(request["touch_bytes"], huge_pages=source.loader == "streamer")
    before_bytes = _start_of_peak()
    started, cpu_started = time.perf_counter(), time.process_time()
    tensors = load(source, request["show_bar"])
    seconds, cpu_seconds = [time.perf_counter() - started], time.process_time() - cpu_started
    peak_bytes = _status_bytes("VmHWM") - before_bytes
    expected = dict(_reference(Path(request["folder"])))
    wrong = _differences(tensors, expected)
    del tensors
    started = time.perf_counter()
    tensors = load(source, False)
    seconds.append(time.perf_counter() - started)
    wrong = sorted({*wrong, *_differences(tensors, expected)})
    size_bytes = sum(tensor.nbytes for tensor in expected.values())
    print(json.dumps(asdict(Cost(seconds, cpu_seconds, peak_bytes, size_bytes, len(expected), wrong))))


def _streamer_loader() -> Callable[[Source, bool], Tensors]:
    import streamer

    def load(source: Source, show_bar: bool) -> Tensors:
        progress = None if show_bar else False  # None: a bar if the standard error is a terminal
        return streamer.load(source.uri, storage_options=source.storage_options, progress=progress)

    return load


def _safetensors_loader() -> Callable[[Source, bool], Tensors]:
    from safetensors.torch import load_file

    def load(source: Source, _show_bar: bool) -> Tensors:
        """Copy each tensor out of the mapped file: `load_file` alone may not have read a byte yet."""
        tensors: Tensors = {}
        for shard in sorted(Path(source.uri).glob("*.safetensors")):
            tensors |= {name: tensor.clone() for name, tensor in load_file(shard).items()}
        return tensors

    return load


LOADERS = {"streamer": _streamer_loader, "safetensors": _safetensors_loader}


def _start_of_peak() -> int:
    """Reset the peak, which includes the imports, and return the resident memory at this moment."""
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets VmHWM
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise LookupError(f"/proc/self/status has no {field}")


def _reference(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Read every tensor with safetensors' own reader."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a dictionary: it cannot be iterated
                yield name, shard.get_tensor(name)


def _differences(tensors: Tensors, expected: Tensors) -> list[str]:
    missing_or_extra = tensors.keys() ^ expected.keys()
    unequal = {name for name in tensors.keys() & expected.keys() if not _is_equal(tensors[name], expected[name])}
    return sorted(missing_or_extra | unequal)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bytes, because as values a NaN differs from itself and 0.0 equals -0.0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        _answer_measurement()
    else:
        sys.exit(main())
