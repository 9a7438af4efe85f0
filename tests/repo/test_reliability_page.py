"""``docs/reliability.md``: every event names tests that exist; every outage is listed; its table was measured."""

from __future__ import annotations

import re
from pathlib import Path

from each_row import each_row
from faults.outage_report import rows_in, table
from faults.outages import OUTAGES

ROOT = Path(__file__).resolve().parents[2]
SECTION = "## What may happen under a load, and the test that shows it\n"
PAGE = (ROOT / "docs/reliability.md").read_text()
ROWS = [
    line
    for line in PAGE.partition(SECTION)[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| event", "|---"))
]
NAMED = re.compile(r"`([\w/.]+\.(?:py|cc))::([^`]+)`")


def test_every_event_names_a_test() -> None:
    assert len(ROWS) >= 25
    assert [row for row in ROWS if not NAMED.search(row)] == []


@each_row("name", OUTAGES)
def test_every_outage_is_listed_as_it_describes_itself(name: str) -> None:
    assert f"| `{name}` | {OUTAGES[name].summary} |\n" in PAGE


def test_the_table_of_outages_is_what_was_measured() -> None:
    assert table(rows_in(ROOT / "docs/benchmarks/outages.jsonl")) in PAGE
