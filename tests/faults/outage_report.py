"""The rows of `faults.outage_table`, as lines of JSON, put side by side: what ``docs/reliability.md`` shows.

cd tests && python -m faults.outage_report ../docs/benchmarks/outages.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COLUMNS = {  # by loader and requests in flight
    ("streamer", 64): "64 in flight",
    ("streamer", 256): "256 in flight",
    ("runai", 0): "Run:ai",
    ("s3fs", 0): "s3fs, shards",
    ("s3fs_ranges", 0): "s3fs, ranges",
}
SERVERS = {"http": "nginx", "s3": "SeaweedFS", "nfs": "nfs-ganesha"}
OUTAGES = {"killed": "killed, away {} s", "reset_wave": "all reset, {} s", "throttle_wave": "503 to all, {} s"}


def table(rows: list[Row]) -> str:
    """Write the table in Markdown: a line per server and outage, a column per loader."""
    cells: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for row in rows:
        line = (SERVERS[row["storage"]], OUTAGES[row["outage"]].format(f"{row['lasts_s']:g}"))
        cells.setdefault(line, {})[column_of(row)] = cell(row)
    head = ["server", "outage", *COLUMNS.values()]
    lines = [head, ["---"] * len(head)]
    lines += [[*line, *(found.get(column, "") for column in COLUMNS)] for line, found in cells.items()]
    return "\n".join("| " + " | ".join(each) + " |" for each in lines)


def column_of(row: Row) -> tuple[str, int]:
    """Which column: NFS has connections instead of requests in flight, and stands in the first."""
    return ("streamer", 64) if row["storage"] == "nfs" else (row["loader"], row["in_flight"])


def cell(row: Row) -> str:
    """Say when it went on, how late it was and with how many times the requests; or how it failed and when."""
    if row["ended"] == "equal":
        return f"{row['resumed_s']:.1f} s, {row['late_s']:+.1f} s, {row['requests']:.2f}x"
    if row["ended"] == "not met":
        return "not met"
    return f"**{row['ended']}** after {max(0.0, row['after_s']):.0f} s"


def rows_in(file: Path) -> list[Row]:
    """Read a row per line."""
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    print(table(rows_in(Path(sys.argv[1]))))
