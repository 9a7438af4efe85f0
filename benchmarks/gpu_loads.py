"""Measure the first and the second load of a fresh process to one CUDA device: contestants, settings, ranks, HTTP.

    python benchmarks/gpu_loads.py [--gib 12] [--rounds 2] [--sections rivals,sweep,host,ranks,http] [--json FILE]

A server that starts does one load, so the first load counts. The second load shows how much time the first one needed
for memory, pinning and connections. Rows alternate. Each run is a fresh process that has finished its imports and
opened the device. Every tensor of its last load is compared with the files, as numpy reads them, after the clock has
stopped. `--fake LIBRARY` runs everything with the fake driver of tests/gpu on a machine without a GPU. This tests the
script, and measures no speed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from checkpoint import expected_tensors, make_or_reuse  # noqa: E402  its folder is no package
from gpu_contestants import CONTESTANTS  # noqa: E402
from measure import MASK, bring_into_page_cache, tensor_digest  # noqa: E402
from paced_origin import Pace, PacedOrigin  # noqa: E402

NOT_INSTALLED = 3
TIMEOUT_S = 300
LOADS = 2
SERVERS = 4  # each is one thread, and serves shards of its own
RANKS = 8
FAKE_RANKS = 2  # the fake shows no speed
RANK_SHARE = 3  # each rank loads every third shard: eight copies must fit into the device
MIB = 1 << 20
UNPACED = Pace(latency_us=0, connection_bytes=0)
STORE = Pace()


class Row(NamedTuple):
    """A row of the table: the contestant, its environment, the source and the device."""

    contestant: str
    environment: dict[str, str] = {}  # noqa: RUF012  never changed
    place: str = "files"
    device: str = "cuda:0"  # some contestants want the index
    ranks: int = 1

    @property
    def name(self) -> str:
        """The name in the table."""
        settings = " ".join(f"{name.removeprefix('STREAMER_')}={value}" for name, value in self.environment.items())
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else ""
        return " ".join(filter(None, [self.contestant, ranks, self.place.replace("files", ""), settings]))


def _with(threads: int, ring_mib: int) -> dict[str, str]:
    return {"STREAMER_FILE_THREADS": str(threads), "STREAMER_PINNED_BYTES": str(ring_mib * MIB)}


SWEEP = [(threads, ring) for threads in (8, 10, 12, 16) for ring in (96, 256)] + [(16, 2048)]
SECTIONS: dict[str, list[Row]] = {
    "rivals": [Row(name) for name in CONTESTANTS if "prefetch" not in name and "by the ring" not in name],
    "sweep": [Row("streamer load", _with(threads, ring)) for threads, ring in SWEEP],
    "host": [Row(name, device="cpu") for name in ("streamer load", "streamer load_into", "runai sync_buffered")],
    "ranks": [Row("streamer load", ranks=RANKS), Row("streamer load", _with(2, 64), ranks=RANKS)],
    "http": [Row("streamer load", place="unpaced"), Row("streamer load", place="store")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=12)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpu-loads")
    parser.add_argument("--fake", type=Path, metavar="LIBRARY")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(*arguments.child[:2], arguments.child[2:], arguments.fake)
        return
    paths = make_or_reuse(arguments.folder / "model", int(arguments.gib * 2**30), arguments.shards)
    bring_into_page_cache(paths)
    results: dict[str, list[dict[str, Any]]] = {}
    for section in arguments.sections.split(","):
        # torch without CUDA cannot create tensors on the fake device, which the other contestants need.
        rows = SECTIONS[section]
        if arguments.fake:
            rows = [row._replace(ranks=min(row.ranks, FAKE_RANKS)) for row in rows if row.contestant == "streamer load"]
        results[section] = _section(rows, paths, arguments)
        _print(section, results[section])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if any(row.get("error", "not installed") != "not installed" for rows in results.values() for row in rows):
        sys.exit(1)


def _section(rows: list[Row], paths: list[Path], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": row.name, "runs": []} for row in rows]
    for number in range(arguments.rounds):
        order = list(zip(rows, found, strict=True))
        for row, results in order[:: -1 if number % 2 else 1]:
            if not results.get("error"):
                _run(row, results, paths, arguments.fake)
                print(row.name, results.get("error") or results["runs"][-1]["gb_per_s"], file=sys.stderr, flush=True)
    return found


def _run(row: Row, results: dict[str, Any], paths: list[Path], fake: Path | None) -> None:
    chosen = paths[::RANK_SHARE] if row.ranks > 1 else paths
    expected = expected_tensors(chosen)
    with _served(row.place, chosen) as where:
        children = [_started(row, rank, where, fake) for rank in range(row.ranks)]
        answers = _answers(children)
    errors = [each for each in answers if isinstance(each, str)]
    if errors or any(answer[key] != value for answer in answers for key, value in expected.items()):
        results["error"] = errors[0] if errors else "returned wrong tensors"
        return
    slowest = [max(answer["loads"][load]["seconds"] for answer in answers) for load in range(LOADS)]
    together = expected["bytes"] * row.ranks
    results["runs"].append({"gb_per_s": [together / seconds / 1e9 for seconds in slowest], "ranks": answers})


def _started(row: Row, rank: int, where: list[str], fake: Path | None) -> subprocess.Popen[str]:
    ranks = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(row.ranks)} if row.ranks > 1 else {}
    environment = os.environ | dict(CONTESTANTS[row.contestant].environment) | row.environment | ranks
    command = [
        sys.executable,
        __file__,
        *(["--fake", str(fake)] if fake else []),
        "--child",
        row.contestant,
        row.device,
    ]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *where], env=environment, **pipes)


def _answers(children: list[subprocess.Popen[str]]) -> list[dict[str, Any] | str]:
    """Let all children begin each load at the same moment; return the figures of each, or its error."""
    guard = threading.Timer(TIMEOUT_S, lambda: [child.kill() for child in children])
    guard.start()
    try:
        for _ in range(LOADS):
            if not all(child.stdout.readline() for child in children if child.stdout):
                break  # a child has ended
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
        return [_answer(child, *child.communicate()) for child in children]
    finally:
        guard.cancel()


def _answer(child: subprocess.Popen[str], text: str, _: object) -> dict[str, Any] | str:
    if child.returncode == NOT_INSTALLED:
        return "not installed"
    return json.loads(text.splitlines()[-1]) if child.returncode == 0 else f"exit code {child.returncode}"


@contextmanager
def _served(place: str, paths: list[Path]) -> Iterator[list[str]]:
    if place == "files":
        yield [str(path) for path in paths]
        return
    pace = UNPACED if place == "unpaced" else STORE
    with ExitStack() as stack:
        origins = [stack.enter_context(PacedOrigin(paths[0].parent, pace)) for _ in range(SERVERS)]
        yield [f"{origins[number % SERVERS].http_url}/{path.name}" for number, path in enumerate(paths)]


def _child(name: str, device: str, paths: list[str], fake: Path | None) -> None:
    """Load `LOADS` times in this process; print one JSON line."""
    contestant = CONTESTANTS[name]
    try:
        for module in contestant.imports:
            __import__(module)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    import torch

    is_real = device.startswith("cuda") and fake is None
    if is_real:
        torch.empty(1, device=device)
    loads: list[dict[str, float]] = []
    with _fake_gpu(fake) if device.startswith("cuda") else nullcontext():
        for _ in range(LOADS):
            print("ready", flush=True)
            sys.stdin.readline()
            tensors: list[Any] = []  # replaces the tensors of the previous load, whose memory is then free
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            tensors = list(contestant.load(paths, device))
            if is_real:
                torch.cuda.synchronize()
            loads.append(_figures(before, began))
        found: dict[str, Any] = {"bytes": 0, "digest": 0, "tensors": len(tensors), "loads": loads}
        for tensor_name, tensor in tensors:
            size, value = tensor_digest(tensor_name, tensor.cpu())
            found["bytes"] += size
            found["digest"] = (found["digest"] + value) & MASK
        del tensors, tensor
    print(json.dumps(found))


@contextmanager
def _fake_gpu(library: Path | None) -> Iterator[None]:
    if library is None:
        yield
        return
    from gpu.fake_devices import attached_fake_gpu

    with attached_fake_gpu(library):
        yield


def _figures(before: resource.struct_rusage, began: float) -> dict[str, float]:
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "switches": after.ru_nvcsw - before.ru_nvcsw,
        "faults": after.ru_minflt - before.ru_minflt,
        "resident_bytes": (after.ru_maxrss - before.ru_maxrss) * 1024,
    }


def _print(section: str, rows: list[dict[str, Any]]) -> None:
    print(f"{section}:  first load (best), second load (best) in GB/s; CPU-s/GB; switches; resident MB")
    for row in rows:
        print(f"  {row['name']:58}{row.get('error') or _described(row['runs'])}", flush=True)


def _described(runs: list[dict[str, Any]]) -> str:
    speeds = [[run["gb_per_s"][load] for run in runs] for load in range(LOADS)]
    loads = [answer["loads"][0] | {"bytes": answer["bytes"]} for run in runs for answer in run["ranks"]]
    middle = {key: statistics.median(load[key] for load in loads) for key in loads[0]}
    text = ", ".join(f"{statistics.median(each):6.1f} ({max(each):.1f})" for each in speeds)
    cpu = middle["cpu_seconds"] / middle["bytes"] * 1e9
    return f"{text}  {cpu:5.2f}  {middle['switches']:6.0f}  {middle['resident_bytes'] / 1e6:6.0f}"


if __name__ == "__main__":
    main()
