"""The processes of one round of a benchmark with several ranks: started together, told when to go, and checked.

A script starts itself with ``--rank`` for each rank. Such a process reads its request, imports what it needs, and calls
`answer`: it reports that it is ready, loads at the parent's word, prints its figures, and is checked when all ranks
have loaded, so that the checks of one rank do not slow down the load of another.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from measure import MASK, tensor_digest

SAMPLE_S = 0.05  # between two samples of the memory


def request_of_parent() -> dict[str, Any]:
    """Read the request of this rank."""
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    return request


def answer(load: Callable[[], Mapping[str, Any]]) -> None:
    """Load when all ranks are ready, report the figures, and then the digests; the process ends here."""
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_before, began = sum(os.times()[:2]), time.perf_counter()
    tensors = load()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu_seconds": sum(os.times()[:2]) - cpu_before}), flush=True)
    sys.stdin.readline()
    digests = [tensor_digest(name, tensor) for name, tensor in tensors.items()]
    checked = {"bytes": sum(size for size, _ in digests), "digest": sum(value for _, value in digests) & MASK}
    print(json.dumps({"tensors": len(tensors), **checked}), flush=True)
    sys.stdin.readline()
    os._exit(0)  # a loader may leave threads running


class Ranks:
    """The processes of one round; a context manager that ends them."""

    def __init__(self, script: str, requests: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, script, "--rank"]
        self._processes = [subprocess.Popen(command, env=dict(environment), **pipes) for _ in requests]
        self.pids = [process.pid for process in self._processes]
        for process, request in zip(self._processes, requests, strict=True):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        lines = self._lines()
        assert lines == ["ready\n"] * len(requests), (requests[0], lines)

    def load(self) -> tuple[float, list[dict[str, Any]]]:
        """Let all ranks load; return the seconds until the last one has ended, and the figures of each."""
        began = time.perf_counter()
        self._say("go")
        lines = self._lines()
        return time.perf_counter() - began, [json.loads(line) for line in lines]

    def checked(self) -> list[dict[str, Any]]:
        """Return what each rank says of its tensors."""
        self._say("check")
        return [json.loads(line) for line in self._lines()]

    def check(self, expected: Mapping[str, int]) -> None:
        """Compare the tensors of each rank with the files."""
        for got in self.checked():
            assert got == {key: expected[key] for key in got}, got

    def _say(self, line: str) -> None:
        for process in self._processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _lines(self) -> list[str]:
        return [process.stdout.readline() for process in self._processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *failure: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def held_bytes(pids: Sequence[int]) -> int:
    """Add up the memory of processes; shared pages count once (PSS)."""
    total = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("\nPss:")[2].split()[0]) << 10
    return total


@contextmanager
def peak_of(pids: Sequence[int]) -> Iterator[list[int]]:
    """Sample the memory of processes; the list holds the first value and the peak, in bytes."""
    found, is_over = [held_bytes(pids)] * 2, threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_S):
            found[1] = max(found[1], held_bytes(pids))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        is_over.set()
        sampler.join()


def in_turn(
    names: Sequence[str], rounds: int, measure: Callable[[str], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Measure each row in each round, every second round in the opposite order."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in list(names)[:: -1 if number % 2 else 1]:
            results[name].append(measure(name))
    return results


def print_rows(
    results: Mapping[str, Sequence[Mapping[str, Any]]], columns: Mapping[str, tuple[str, float, str]]
) -> None:
    """Print a table: seconds, and for each column the median of a figure, divided by a unit, in a format."""
    heads = "".join(f"{head:>14}" for head in columns)
    print(f"{'':30}{'median s':>10}{'best':>8}{'max':>8}{heads}")
    for name, rounds in results.items():
        seconds = [each["seconds"] for each in rounds]
        times = f"{statistics.median(seconds):10.2f}{min(seconds):8.2f}{max(seconds):8.2f}"
        medians = (
            f"{statistics.median(each[key] for each in rounds) / unit:14{form}}" for key, unit, form in columns.values()
        )
        print(f"{name:30}{times}{''.join(medians)}", flush=True)
