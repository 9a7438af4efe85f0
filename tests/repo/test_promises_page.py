"""``docs/promises.md`` names a test for each of the ten promises, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISES = re.split(r"^\d+\. ", (ROOT / "docs/promises.md").read_text(), flags=re.MULTILINE)[1:]
NAMED = re.compile(r"- `([\w/.]+)::(\w+)`")


def test_each_of_ten_promises_names_a_test() -> None:
    assert len(PROMISES) == 10
    assert all(NAMED.search(promise) for promise in PROMISES)
