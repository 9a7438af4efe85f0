"""``docs/start.md`` is true: its examples run, one after the other, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/start.md").read_text(encoding="utf-8")


def masked(text: str) -> str:
    """Replace times and speeds, which differ in each run."""
    return re.sub(r"[\d.]+ (s|[kMG]B/s)\b", r"# \1", re.sub(r"[\d.]+ [kMG]B/s", "# GB/s", text)).strip()


def test_the_examples_run_and_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "start"}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "docs/start.md", "exec"), names)
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert masked(capsys.readouterr().out) == "\n".join(masked(each) for each in shown)
    assert not names["model"].head.weight.is_meta
