"""``docs/promises.md`` names a test for each of the ten promises, and every test it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = re.split(r"^\d+\. ", (ROOT / "docs/promises.md").read_text(), flags=re.MULTILINE)[1:]
NAMED = re.compile(r"- `([\w/.]+)::(\w+)`")


def test_there_are_ten_and_each_names_a_test() -> None:
    assert len(PROMISES) == 10
    assert all(NAMED.search(promise) for promise in PROMISES)


@pytest.mark.parametrize(("file", "name"), sorted({pair for each in PROMISES for pair in NAMED.findall(each)}))
def test_a_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name.startswith("test_")
