"""The pictures and tables of the benchmarks are those of the results that are kept."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from each_row import each_row
from pages import ROOT, text_of

PICTURES = runpy.run_path(str(ROOT / "docs/pictures.py"))
RESULTS = sorted((ROOT / "benchmarks/results").glob("*.json"))
LOADS = PICTURES["results"]("loads")


@each_row("path", [*PICTURES["files"]()])
def test_what_is_made_from_results_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PICTURES["files"]()[path](), "run python docs/pictures.py"


@each_row("path", RESULTS)
def test_each_result_says_how_it_was_measured_and_is_on_a_page(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["machine"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    for section in result["sections"]:
        script = section["command"].split()[1]
        assert (ROOT / script).is_file(), script
        assert section["rounds"] >= 1
    assert any(f"](benchmarks/{path.stem}.svg)" in page.read_text(encoding="utf-8") for page in PICTURES["PAGES"])


def test_the_table_of_goals_has_the_figures_of_the_results() -> None:
    rows = text_of("docs/benchmarks.md").partition("## How it stands")[2].partition("\n##")[0].splitlines()
    shown = {cells[1]: cells for cells in ([cell.strip() for cell in row.split("|")] for row in rows if "|" in row)}
    for section in LOADS["sections"]:
        ours, raw, rival, _ = map(PICTURES["cell"], PICTURES["compared"](section))
        cells = shown[section["label"]]
        assert (cells[2], cells[3], cells[6]) == (ours, rival, raw)


def test_all_rounds_of_a_benchmark_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["benchmarks/bench_load.py", "--rounds", "3"])
    import report

    costs = {"cpu_seconds": 1, "peak_rss_bytes": 3e9, "disk_bytes": 0, "minor_faults": 1, "major_faults": 0}
    runs = [{"bytes": 2e9, "seconds": seconds, **costs} for seconds in (1, 2, 4)]
    rows = [report.Row("raw", runs), report.Row("streamer <load>", runs[:2]), report.Row("gone", [], "not installed")]
    report.write_results(tmp_path / "loads.json", {"page cache": rows})
    result = json.loads((tmp_path / "loads.json").read_text())
    assert result["sections"][0]["command"] == "python benchmarks/bench_load.py --rounds 3"
    drawn = PICTURES["picture"](result)
    assert (drawn.count("<circle"), "streamer &lt;load&gt;" in drawn, "gone" in drawn) == (5, True, False)
