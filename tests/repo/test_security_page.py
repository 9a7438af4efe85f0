"""``docs/security.md`` names a test in each row, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/security.md").read_text().splitlines()
    if line.startswith("| ") and not line.endswith(" test |")
]
NAMED = re.compile(r"`([\w/.]+)::(\w+)`")


def test_each_row_names_a_test() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if not NAMED.search(row)] == []
