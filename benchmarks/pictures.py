"""Draws the tables of `bench_experiments.py` as SVG: a line for each loader, throughput over concurrency.

Guarantees: a point is the median of all rounds, its bar reaches from the slowest to the fastest; a loader without a
setting is a horizontal line. Nothing is drawn that was not measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from report import Row, is_measured

_WITH_COUNT = re.compile(r"(?P<loader>.+), (?P<count>\d+) (?P<unit>threads|requests)")


def concurrency_picture(path: Path, title: str, rows: list[Row]) -> None:
    """Write the picture to `path`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["svg.hashsalt"] = title  # the same rows give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    lines: dict[str, dict[int, Row]] = defaultdict(dict)
    unit = ""
    for row in filter(is_measured, rows):
        match = _WITH_COUNT.fullmatch(row.name)
        if match is None:
            axes.axhline(row.median, linestyle="--", color=_color(row.name), label=f"{row.name} (no setting)")
        else:
            lines[match["loader"]][int(match["count"])] = row
            unit = match["unit"]
    for loader, by_count in lines.items():
        counts = sorted(by_count)
        medians = [by_count[count].median for count in counts]
        below = [by_count[count].median - min(by_count[count].speeds()) for count in counts]
        above = [by_count[count].best - by_count[count].median for count in counts]
        axes.errorbar(
            counts, medians, [below, above], marker="o", capsize=3, color=_color(loader.split(" ")[0]), label=loader
        )
    axes.set(title=title, xlabel=unit, ylabel="GB/s", xscale="log", ylim=(0, None))
    counts = sorted({count for by_count in lines.values() for count in by_count})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def _color(loader: str) -> str:
    colors = {"streamer": "tab:green", "Run:ai,": "tab:red", "Run:ai": "tab:red", "tensorizer": "tab:blue"}
    return colors.get(loader, {"fastsafetensors": "tab:orange", "safetensors": "tab:purple"}.get(loader, "tab:gray"))
