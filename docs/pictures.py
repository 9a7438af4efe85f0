"""Draws the pictures of the benchmarks, and writes their tables, from the results in ``benchmarks/results``.

    python docs/pictures.py

A bar reaches to the median, a line from the worst to the best round; a dot is a round, if the result has all of them. A
result is JSON with ``title``, ``unit`` (``GB/s`` or ``seconds``), ``machine``, ``date`` and ``sections``. A section has
``label``, ``title``, ``command``, ``rounds`` and ``rows`` with ``name``, ``median``, ``best``, ``worst`` and ``all``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "benchmarks"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
OWN = re.compile(r"streamer|^save to|ours$|share=")
LIMIT = re.compile(r"^raw ")
COMPARED = ("streamer load", "raw ", "runai ", "safetensors ")  # the columns of the README's table
SECTIONS_OF_README = 7

WIDTH, LEFT, RIGHT, ROW, GAP = 720, 250, 70, 22, 34
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b1f24; } .soft { fill: #57606a; font-size: 13px; }
.ground { fill: #ffffff; } .own { fill: #0a7d5a; } .limit { fill: #8b929b; } .other { fill: #c2410c; }
.spread { stroke: #1b1f24; stroke-width: 1.5; } .round { fill: #1b1f24; } .head { font-weight: 600; }
@media (prefers-color-scheme: dark) { text { fill: #e6eaef; } .soft { fill: #a3adb8; } .ground { fill: #12161c; }
.own { fill: #2f9d78; } .limit { fill: #737c87; } .other { fill: #d9723a; }
.spread { stroke: #e6eaef; } .round { fill: #e6eaef; } }"""


def results(name: str) -> dict[str, Any]:
    """Read a result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def compared(section: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the rows of each column of the README's table, the best median first."""
    columns = [[row for row in section["rows"] if row["name"].startswith(start)] for start in COMPARED]
    return [sorted(rows, key=lambda row: -row["median"]) for rows in columns]


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture(result: Mapping[str, Any], *, only_compared: bool = False) -> str:
    """Draw a result as SVG."""
    y, parts = 28, [f'<text class="head" x="16" y="28">{escape(result["title"])}, {result["unit"]}</text>']
    for section in result["sections"]:
        rows = [rows[0] for rows in compared(section) if rows] if only_compared else section["rows"]
        y += GAP
        parts.append(f'<text x="16" y="{y}">{escape(section["label"])}</text>')
        scale = (WIDTH - LEFT - RIGHT) / max(max(_spread(row)) for row in rows)
        for row in rows:
            y += ROW
            parts += _row(row, y, scale)
    rounds = sorted({section["rounds"] for section in result["sections"]})
    number = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else f"{rounds[0]} rounds"
    better = "more is better" if result["unit"] == "GB/s" else "less is better"
    told = "one round" if rounds == [1] else f"bar: median of {number}; line: from the worst to the best"
    y += GAP
    parts.append(f'<text class="soft" x="16" y="{y}">{told}; {better}; {result["date"]}</text>')
    height, title = y + 18, escape(result["title"])
    size = f'width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img">'
    ground = f'<rect class="ground" {size} rx="8"/>'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>\n"])


def _spread(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the least value of a row, the median and the greatest."""
    ends = [row.get("worst", row["median"]), row["median"], row.get("best", row["median"])]
    return min(ends), row["median"], max(ends)


def _row(row: Mapping[str, Any], y: float, scale: float) -> Iterator[str]:
    low, median, high = _spread(row)
    kind = "own" if OWN.search(row["name"]) else "limit" if LIMIT.search(row["name"]) else "other"
    yield f'<text class="soft" x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(row["name"])}</text>'
    yield f'<rect class="{kind}" x="{LEFT}" y="{y - 12}" width="{median * scale:.1f}" height="14"/>'
    if high > low:
        begin, end = LEFT + low * scale, LEFT + high * scale
        path = f"M{begin:.1f} {y - 9}v8m0 -4H{end:.1f}m0 -4v8"
        yield f'<path class="spread" fill="none" d="{path}"/>'
    for value in row.get("all", ()):
        yield f'<circle class="round" cx="{LEFT + value * scale:.1f}" cy="{y - 5}" r="2"/>'
    yield f'<text x="{LEFT + high * scale + 8:.1f}" y="{y}">{median:.3g}</text>'


# --- tables -----------------------------------------------------------------------------------------------------------


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the best median of rows, and the best of all their rounds in brackets."""
    if not rows:
        return "\N{EN DASH}"
    note = f", {rows[0]['note']}" if "note" in rows[0] else ""
    return f"{rows[0]['median']:.2f} ({max(row['best'] for row in rows):.2f}){note}"


def readme_table(loads: Mapping[str, Any]) -> str:
    """Return the table of the README."""
    lines = ["| | `load` | raw limit | Run:ai 0.17, best setting | safetensors + clone |", "|---|---|---|---|---|"]
    for section in loads["sections"][:SECTIONS_OF_README]:
        lines.append(f"| {section['label']} | {' | '.join(map(cell, compared(section)))} |")
    return "\n".join(lines)


def text_table(section: Mapping[str, Any]) -> str:
    """Return all figures of a section."""
    head = f"{'contestant':28}{'median':>8}{'best':>8}{'min..max GB/s':>16}{'CPU-s/GB':>10}"
    head += f"{'peak MB':>9}{'disk MB':>9}{'faults':>9}{'of raw':>8}"
    lines = [section["title"], head, "-" * len(head)]
    for row in section["rows"]:
        if "faults" in row:
            spread, of_raw = f"{row['worst']:.2f}..{row['best']:.2f}", row.get("of_raw")
            line = f"{row['name']:28}{row['median']:8.2f}{row['best']:8.2f}{spread:>16}{row['cpu_s_per_gb']:10.3f}"
            line += f"{row['peak_mb']:9.0f}{row['disk_mb']:9.0f}{row['faults']:9.0f}"
            lines.append(line + (f"{of_raw:8.2f}" if of_raw else f"{'-':>8}"))
    return "\n".join(lines)


def with_tables(text: str, loads: Mapping[str, Any]) -> str:
    """Return a page with the tables of these results in the place of its own."""
    texts = "\n\n".join(map(text_table, loads["sections"]))
    for begin, end, table in (("| | `load` |", "\n\n", readme_table(loads)), ("file-warm, ", "\n```\n", texts)):
        before, found, after = text.partition(f"\n{begin}")
        text = f"{before}\n{table}{end}{after.partition(end)[2]}" if found else text
    return text


def files() -> dict[Path, Callable[[], str]]:
    """Return what makes each picture, and each page with tables."""
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    made: dict[Path, Callable[[], str]] = {
        PICTURES / f"{name}.svg": lambda name=name: picture(results(name), only_compared=name == "loads")  # type: ignore[misc]
        for name in names
    }
    for page in PAGES:
        made[page] = lambda page=page: with_tables(page.read_text(encoding="utf-8"), results("loads"))  # type: ignore[misc]
    return made


if __name__ == "__main__":
    for path, make in files().items():
        path.write_text(make(), encoding="utf-8")
