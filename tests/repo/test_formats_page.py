"""``docs/formats.md`` is true: its examples run, and its table lists the installed formats."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import streamer
from streamer.plugins.formats import formats_for

PAGE = (Path(__file__).resolve().parents[2] / "docs/formats.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 5
    names: dict[str, Any] = {"folder": str(tmp_path), "__name__": "page"}
    for example in EXAMPLES:
        exec(compile(example, "docs/formats.md", "exec"), names)
    assert torch.equal(names["rows"], torch.ones(2, 8))
    assert torch.equal(streamer.load(tmp_path / "converted")["layer.weight"], torch.ones(4, 8))
    suite = names["TestJson"]()
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert len(tests) == 6
    for name in tests:
        getattr(suite, name)()


def test_the_table_lists_every_format() -> None:
    formats = formats_for()
    for each in formats:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {each.name} |"))
        assert all(f"`*{suffix}`" in row or f"`{suffix}`" in row for suffix in each.suffixes), row
    assert [each.name for each in formats]
