"""Draws the pictures of the benchmarks, and writes their tables, from the results in ``benchmarks/results``.

    python docs/pictures.py

A bar reaches to the median, a line from the worst to the best round; a dot is a round, if the result has all of them. A
result is JSON with ``title``, ``unit`` (``GB/s`` or ``seconds``), ``machine``, ``date`` and ``sections``. A section has
``label``, ``title``, ``command``, ``rounds`` and ``rows`` with ``name``, ``median``, ``best``, ``worst`` and ``all``.
With ``curves`` in place of rows, each with ``name`` and ``points``, lines are drawn over logarithmic axes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "benchmarks"
MODEL_PAGE = ROOT / "docs" / "scale.md"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md", MODEL_PAGE)
OWN = re.compile(r"streamer|^save to|ours$|share=")
LIMIT = re.compile(r"^raw ")
COMPARED = ("streamer load", "raw ", "runai ", "safetensors ")  # the columns of the README's table
SECTIONS_OF_README = 7

WIDTH, LEFT, RIGHT, ROW, GAP = 720, 250, 70, 22, 34
AXIS, LABELS, DECADE = (
    64,
    190,
    34,
)  # of curves: room for numbers on the left, for names on the right; height of a factor of ten
KINDS = ("other", "limit", "own")  # of curves, in their order
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
    if "curves" in result["sections"][0]:
        return curves_picture(result)
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
    return _framed(result["title"], y + 18, STYLE, parts)


CURVES = """.grid { stroke: #8b929b; stroke-width: 0.5; } .curve { stroke-width: 2.5; fill: none; }
.curve.own { stroke: #0a7d5a; } .curve.limit { stroke: #8b929b; } .curve.other { stroke: #c2410c; }
@media (prefers-color-scheme: dark) { .curve.own { stroke: #2f9d78; } .curve.limit { stroke: #a3adb8; }
.curve.other { stroke: #d9723a; } }"""


def curves_picture(result: Mapping[str, Any]) -> str:
    """Draw the curves of a result as SVG."""
    y, parts = 28.0, [f'<text class="head" x="16" y="28">{escape(result["title"])}</text>']
    for section in result["sections"]:
        y += GAP
        parts.append(f'<text x="16" y="{y}">{escape(section["label"])}</text>')
        drawn, height = _curves(section["curves"], y + 14)
        parts += drawn
        y += 14 + height + 18
    y += GAP
    note = f"over the number of nodes, both axes logarithmic; a model, not a measurement; {result['date']}"
    parts.append(_label(16, y, note, "start"))
    return _framed(result["title"], y + 18, f"{STYLE}\n{CURVES}", parts)


def _curves(curves: Sequence[Mapping[str, Any]], top: float) -> tuple[list[str], float]:
    """Draw the lines of a section below a height; return them, and how high they are."""
    values = [value for each in curves for _, value in each["points"]]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    most = max(count for each in curves for count, _ in each["points"])
    height, width = (high - low) * DECADE, WIDTH - AXIS - LABELS

    def place(count: float, value: float) -> tuple[float, float]:
        return AXIS + width * log10(count) / log10(most), top + height - (log10(value) - low) * DECADE

    parts = []
    for tick in (10.0**power for power in range(low, high + 1)):
        y = place(1, tick)[1]
        parts += [
            f'<path class="grid" d="M{AXIS} {y:.1f}H{AXIS + width}"/>',
            _label(AXIS - 8, y + 4, _short(tick), "end"),
        ]
    for tick in (10.0**power for power in range(floor(log10(most)) + 1)):
        x = place(tick, 1)[0]
        parts += [
            f'<path class="grid" d="M{x:.1f} {top}v{height}"/>',
            _label(x, top + height + 18, _short(tick), "middle"),
        ]
    for kind, each in zip(KINDS, curves, strict=True):
        path = "L".join("{:.1f} {:.1f}".format(*place(*point)) for point in each["points"])
        x, y = place(*each["points"][-1])
        parts.append(f'<path class="curve {kind}" d="M{path}"/>')
        parts.append(_label(x + 8, y + 5, f"{each['name']}: {_short(each['points'][-1][1])}", "start", "name"))
    return parts, height


def _label(x: float, y: float, text: str, anchor: str, kind: str = "soft") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    """Return a number of at most three digits that count."""
    return f"{float(f'{value:.3g}'):,.10g}".replace(",", " ")


def _framed(title: str, height: float, style: str, parts: Sequence[str]) -> str:
    """Return a picture of this height."""
    size = f'width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img">'
    ground = f'<rect class="ground" {size} rx="8"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", ground, *parts, "</svg>\n"])


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


def model_tables(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tables of a model: each number of nodes, and each case."""
    seconds, sent = (section["curves"] for section in result["sections"])
    names = [each["name"] for each in seconds]
    lines = [f"| nodes | {' | '.join(f'{name}: s | TB' for name in names)} |", "|---" * (2 * len(names) + 1) + "|"]
    for number, (count, _) in enumerate(seconds[0]["points"]):
        pairs = (each["points"][number][1] for both in zip(seconds, sent, strict=True) for each in both)
        lines.append(f"| {count} | {' | '.join(map(_short, pairs))} |")
    cases = [
        "| case | once per node: s | peers, half: s | peers, last: s | from the store: sizes | between zones: sizes |"
    ]
    cases.append("|---|---|---|---|---|---|")
    for row in result["cases"]:
        name, *values = row.values()
        cases.append(f"| {name} | {' | '.join(map(_short, values))} |")
    return "\n".join(lines), "\n".join(cases)


def with_tables(text: str, tables: Iterable[tuple[str, str, str]]) -> str:
    """Return a page with tables in the place of its own; each has the beginning and the end of that."""
    for begin, end, table in tables:
        before, found, after = text.partition(f"\n{begin}")
        text = f"{before}\n{table}{end}{after.partition(end)[2]}" if found else text
    return text


def tables_of(page: Path) -> list[tuple[str, str, str]]:
    """Return the tables of a page, for `with_tables`."""
    if page == MODEL_PAGE:
        return [*zip(("| nodes |", "| case |"), ("\n\n", "\n\n"), model_tables(results("fleet_model")), strict=True)]
    loads = results("loads")
    texts = "\n\n".join(map(text_table, loads["sections"]))
    return [("| | `load` |", "\n\n", readme_table(loads)), ("file-warm, ", "\n```\n", texts)]


def files() -> dict[Path, Callable[[], str]]:
    """Return what makes each picture, and each page with tables."""
    names = sorted(path.stem for path in RESULTS.glob("*.json"))
    made: dict[Path, Callable[[], str]] = {
        PICTURES / f"{name}.svg": lambda name=name: picture(results(name), only_compared=name == "loads")  # type: ignore[misc]
        for name in names
    }
    for page in PAGES:
        made[page] = lambda page=page: with_tables(page.read_text(encoding="utf-8"), tables_of(page))  # type: ignore[misc]
    return made


if __name__ == "__main__":
    for path, make in files().items():
        path.write_text(make(), encoding="utf-8")
