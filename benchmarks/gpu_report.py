"""Prints the results of bench_gpu.py, and which goals of the project their medians meet."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

__all__ = ["print_report"]

OURS = "streamer load"
LEAST_OF_LIMIT = 0.9  # of the slower limit: the bus or the page cache
LEAST_OF_RIVALS = 1.0  # of the best rival
MOST_TO_FIRST_TENSOR_S = 0.05


def print_report(results: dict[str, Any]) -> None:
    size_bytes = results["bytes"]
    print(f"{results['machine']['device']}, torch {results['machine']['torch']}, {size_bytes / 1e9:.2f} GB")
    for name, rate in results["limits"].items():
        print(f"  limit, {name:40}{rate:8.2f} GB/s")
    for section, rows in results["sections"].items():
        print(f"{section}:")
        for row in sorted(rows, key=_median_s):
            print(f"  {row['name']:28}{_described(row, size_bytes)}")
    print("goals:")
    for text, is_met in _goals(results):
        print(f"  {text:70}{'met' if is_met else 'MISSED'}")


def _described(row: dict[str, Any], size_bytes: int) -> str:
    if row.get("error"):
        return str(row["error"])
    seconds = sorted(run["seconds"] for run in row["runs"])
    median, slowest, fastest = (size_bytes / value / 1e9 for value in (_median_s(row), seconds[-1], seconds[0]))
    cpu = _median_of(row, "cpu_seconds") / size_bytes * 1e9
    host = max(run["peak_rss_bytes"] for run in row["runs"]) / 1e6
    text = f"{median:8.2f} GB/s  ({slowest:.2f}..{fastest:.2f})  {cpu:.2f} CPU-s/GB  host +{host:.0f} MB"
    if "first_tensor_s" in row["runs"][0]:
        first_ms = _median_of(row, "first_tensor_s") * 1e3
        pinned = max(run["peak_pinned_bytes"] for run in row["runs"]) / 1e6
        text += (
            f"  first tensor {first_ms:.0f} ms  pinned {pinned:.0f} MB  by {row['runs'][0]['device_path'] or 'none'}"
        )
    return text


def _goals(results: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    rates = {
        section: {row["name"]: results["bytes"] / _median_s(row) / 1e9 for row in rows if row["runs"]}
        for section, rows in results["sections"].items()
    }
    limit = min(results["limits"].values())
    if limit and OURS in rates.get("warm", {}):
        part = rates["warm"][OURS] / limit
        yield f"warm: {part:.2f} of the slower limit, {LEAST_OF_LIMIT} wanted", part >= LEAST_OF_LIMIT
    for section, found in rates.items():
        rivals = {name: rate for name, rate in found.items() if not name.startswith("streamer")}
        if rivals and OURS in found:
            best = max(rivals, key=lambda name: rivals[name])
            part = found[OURS] / rivals[best]
            yield f"{section}: {part:.2f} of {best}, {LEAST_OF_RIVALS} wanted", part >= LEAST_OF_RIVALS
    for row in results["sections"].get("warm", []):
        if row["name"] == OURS and row["runs"]:
            first_s = _median_of(row, "first_tensor_s")
            wanted = f"{MOST_TO_FIRST_TENSOR_S * 1e3:.0f} wanted"
            yield f"warm: first tensor after {first_s * 1e3:.0f} ms, {wanted}", first_s < MOST_TO_FIRST_TENSOR_S


def _median_s(row: dict[str, Any]) -> float:
    return _median_of(row, "seconds") if row["runs"] else float("inf")


def _median_of(row: dict[str, Any], figure: str) -> float:
    return statistics.median(run[figure] for run in row["runs"])
