"""``docs/security.md`` names a test in each row, and every test it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("file", "name"), sorted({pair for row in ROWS for pair in NAMED.findall(row)}))
def test_a_named_test_exists(file: str, name: str) -> None:
    place = ROOT / "tests" / file
    tree = ast.parse((place if place.exists() else ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name.startswith("test_")
