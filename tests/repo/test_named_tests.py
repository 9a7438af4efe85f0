"""Every test that a page names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("promises", "reliability", "security")
NAMED = re.compile(r"`([\w/.]+\.(?:py|cc))::([^`]+)`")


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """Return the names of the tests of a file, which a page names below the root or below ``tests/``."""
    place = ROOT / "tests" / file
    text = (place if place.exists() else ROOT / file).read_text()
    if file.endswith(".cc"):
        return frozenset(re.findall(r'TEST_CASE\("([^"]+)"\)', text))
    names = (node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def test_every_test_that_a_page_names_exists() -> None:
    named = {pair for page in PAGES for pair in NAMED.findall((ROOT / f"docs/{page}.md").read_text())}
    assert len(named) > 200
    assert {(file, name) for file, name in named if name not in names_of_tests(file)} == set()
