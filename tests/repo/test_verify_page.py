"""``docs/verify.md`` is true: its examples run, its names exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer.core.format.manifest import parse_manifest

PAGE = (Path(__file__).resolve().parents[2] / "docs/verify.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"lm_head.weight": torch.arange(1000.0)}, tmp_path / "model.safetensors")
    return tmp_path


def test_the_examples_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 3
    for example in EXAMPLES:
        exec(compile(example, "docs/verify.md", "exec"), {"streamer": streamer, "folder": folder})
    told = capsys.readouterr().out
    assert "model.safetensors.manifest.json" in told
    assert "not verified: its storage keeps no digest of it" in told


def test_the_manifest_it_shows_is_one() -> None:
    shown = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    for each in shown:
        assert parse_manifest(json.dumps(json.loads(each)).encode(), uri="docs/verify.md").shards
    assert len(shown) == 1
