"""Draws the tables of experiments as SVG: throughput over concurrency, and how long each phase of a start takes.

Guarantees: a point is the median of all rounds, and its bar reaches from the slowest to the fastest round. A loader
without a setting is a horizontal line. Only measured values are drawn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report import Row, is_measured

_WITH_COUNT = re.compile(r"(?P<loader>.+), (?P<count>\d+) (?P<unit>threads|requests)")


def concurrency_picture(path: Path, title: str, rows: list[Row]) -> None:
    """Write the picture to `path`."""
    figure, axes = _pyplot(title).subplots(figsize=(8, 4.5))
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
    _write(figure, path)


def phases_picture(path: Path, experiments: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draw how many seconds each loader spends in each phase, a bar for each loader.

    Args:
        path: The path of the SVG.
        experiments: Title to loader to phase to seconds; phases in order.
    """
    figure, all_axes = _pyplot("phases").subplots(len(experiments), figsize=(8, 1.7 * len(experiments)), sharex=True)
    for axes, (title, loaders) in zip(all_axes, experiments.items(), strict=True):
        left = [0.0] * len(loaders)
        for phase in next(iter(loaders.values())):
            seconds = [phases[phase] for phases in loaders.values()]
            colors = ["lightgray" if phase == "start" else _color(name) for name in loaders]
            axes.barh([*loaders], seconds, left=left, color=colors)
            left = [before + more for before, more in zip(left, seconds, strict=True)]
        axes.invert_yaxis()
        axes.set_title(title, fontsize="medium")
    all_axes[-1].set_xlabel("seconds; gray: imports, configuration and creation of the model")
    _write(figure, path)


def _color(loader: str) -> str:
    colors = {"streamer": "tab:green", "Run:ai,": "tab:red", "Run:ai": "tab:red", "tensorizer": "tab:blue"}
    return colors.get(loader, {"fastsafetensors": "tab:orange", "safetensors": "tab:purple"}.get(loader, "tab:gray"))


def _pyplot(salt: str) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["svg.hashsalt"] = salt  # the same rows give the same file
    from matplotlib import pyplot

    return pyplot


def _write(figure: Any, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
