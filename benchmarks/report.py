"""Makes tables and verdicts from the runs of one session. Values in, text out.

Guarantees: every printed figure comes from runs that loaded every byte; a row with a failure shows the failure instead.
A verdict compares medians of the same session, and also shows the ratio of the best runs.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contestants import STREAM_LIMIT_BYTES

PEAK_ALLOWANCE_BYTES = 150_000_000
STREAM_ALLOWANCE_BYTES = 100_000_000


@dataclass
class Row:
    """All runs of one contestant in one section."""

    name: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    def speeds(self) -> list[float]:
        """The GB/s of each run."""
        return [run["bytes"] / run["seconds"] / 1e9 for run in self.runs]

    @property
    def median(self) -> float:
        """Median GB/s."""
        return statistics.median(self.speeds())

    @property
    def best(self) -> float:
        """The best GB/s, which is the run with the least disturbance."""
        return max(self.speeds())

    @property
    def cpu_seconds_per_gb(self) -> float:
        """Median CPU seconds, user and system, of the client for each 1e9 bytes."""
        return statistics.median(run["cpu_seconds"] / run["bytes"] * 1e9 for run in self.runs)

    @property
    def peak_over_tensors_bytes(self) -> int:
        """The highest peak of resident memory, without the bytes of the tensors."""
        return max(run["peak_rss_bytes"] - run["bytes"] for run in self.runs)


def is_measured(row: Row | None) -> bool:
    """Return whether the row has figures."""
    return row is not None and bool(row.runs) and row.problem is None


def best_of(rows: list[Row], prefix: str) -> Row | None:
    """Return the row with the best median among the rows whose names start with a prefix."""
    return max((row for row in rows if row.name.startswith(prefix) and is_measured(row)), key=_median, default=None)


def _median(row: Row) -> float:
    return row.median


def table(title: str, rows: list[Row]) -> str:
    """Return the table of one section, with the fastest row first."""
    limit = best_of(rows, "raw")
    head = f"{'contestant':28}{'median':>8}{'best':>8}{'min..max GB/s':>16}{'CPU-s/GB':>10}"
    head += f"{'peak MB':>9}{'disk MB':>9}{'faults':>9}{'waits/GB':>10}{'of raw':>8}"
    measured = sorted((row for row in rows if is_measured(row)), key=_median, reverse=True)
    lines = [f"\n{title}", head, "-" * len(head), *(_line(row, limit) for row in measured)]
    lines += [f"{row.name:28}{row.problem or 'not run'}" for row in rows if not is_measured(row)]
    return "\n".join(lines)


def _line(row: Row, limit: Row | None) -> str:
    speeds = row.speeds()
    disk_mb = statistics.median(run["disk_bytes"] for run in row.runs) / 1e6
    faults = statistics.median(run["minor_faults"] + run["major_faults"] for run in row.runs)
    waits = statistics.median(run["switches"] / run["bytes"] * 1e9 for run in row.runs)
    ratio = f"{row.median / limit.median:8.2f}" if limit else "       -"
    spread = f"{min(speeds):.2f}..{max(speeds):.2f}"
    return (
        f"{row.name:28}{row.median:8.2f}{row.best:8.2f}{spread:>16}{row.cpu_seconds_per_gb:10.3f}"
        f"{row.peak_over_tensors_bytes / 1e6:9.0f}{disk_mb:9.0f}{faults:9.0f}{waits:10.0f}{ratio}"
    )


def write_results(path: Path, sections: dict[str, list[Row]]) -> None:
    """Write sections in the form of the files in `benchmarks/results`, from which docs/pictures.py draws."""
    machine = f"{os.cpu_count()} processors, {platform.platform()}, Python {platform.python_version()}"
    head = {"title": "Loads into memory", "unit": "GB/s", "machine": machine, "date": f"{datetime.date.today()}"}
    shown = {name: [row for row in rows if is_measured(row)] for name, rows in sections.items()}
    kept = [
        {
            "label": name,
            "title": name,
            "command": shlex.join(["python", *sys.argv]),
            "rounds": len(rows[0].runs),
            "rows": [_result(row, best_of(rows, "raw")) for row in rows],
        }
        for name, rows in shown.items()
        if rows
    ]
    path.write_text(json.dumps({**head, "sections": kept}, indent=1) + "\n")


def _result(row: Row, limit: Row | None) -> dict[str, Any]:
    figures = {
        "name": row.name,
        "median": row.median,
        "best": row.best,
        "worst": min(row.speeds()),
        "cpu_s_per_gb": row.cpu_seconds_per_gb,
        "peak_mb": row.peak_over_tensors_bytes / 1e6,
        "disk_mb": statistics.median(run["disk_bytes"] for run in row.runs) / 1e6,
        "faults": statistics.median(run["minor_faults"] + run["major_faults"] for run in row.runs),
    }
    figures |= {"of_raw": row.median / limit.median} if limit else {}
    return {**figures, "all": row.speeds()}


def goals(sections: dict[str, list[Row]]) -> str:
    """Return a line for each goal of the project that says whether this session met it."""
    lines = [line for section, rows in sections.items() for line in _section_goals(section, rows)]
    return "\n".join(["\nGoals (medians; the ratio of the bests in brackets)", *lines])


def _section_goals(section: str, rows: list[Row]) -> Iterator[str]:
    ours = next((row for row in rows if row.name == "streamer load"), None)
    over_raw, over_runai = {"file-warm": (0.8, 0.95)}.get(section, (0.85, 2.0))
    if section != "file-cold":
        yield _ratio(section, ours, best_of(rows, "raw"), over_raw)
        yield _ratio(section, ours, best_of(rows, "runai"), over_runai)
    if section == "http":
        figure = ours.cpu_seconds_per_gb if ours and is_measured(ours) else None
        yield _verdict(f"{section}: CPU-s/GB at most 0.28", figure, figure is not None and figure <= 0.28)
    peak = ours.peak_over_tensors_bytes / 1e6 if ours and is_measured(ours) else None
    allowed = PEAK_ALLOWANCE_BYTES / 1e6
    yield _verdict(
        f"{section}: peak MB over the tensors at most {allowed:.0f}", peak, peak is not None and peak <= allowed
    )
    stream = next((row for row in rows if row.name == "streamer stream (discard)" and is_measured(row)), None)
    over_limit = max(run["peak_rss_bytes"] for run in stream.runs) - STREAM_LIMIT_BYTES if stream else None
    yield _verdict(
        f"{section}: peak MB of a discarding stream over its memory limit at most {STREAM_ALLOWANCE_BYTES / 1e6:.0f}",
        over_limit / 1e6 if over_limit is not None else None,
        over_limit is not None and over_limit <= STREAM_ALLOWANCE_BYTES,
    )


def _ratio(section: str, ours: Row | None, other: Row | None, wanted: float) -> str:
    title = f"{section}: at least {wanted} of {other.name if other else 'the other row (not measured)'}"
    if ours is None or other is None or not is_measured(ours):
        return _verdict(title, None, False)
    ratio = ours.median / other.median
    return f"{_verdict(title, ratio, ratio >= wanted)} ({ours.best / other.best:.2f})"


def _verdict(title: str, figure: float | None, is_met: bool) -> str:
    if figure is None:
        return f"  not measured  {title}"
    return f"  {'met   ' if is_met else 'missed'}        {title}: {figure:.2f}"
