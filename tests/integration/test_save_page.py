"""``docs/saving.md`` is true: its examples run, what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import streamer

PAGE = (Path(__file__).resolve().parents[2] / "docs/saving.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 2
    names = {"target": str(tmp_path / "model")}
    for example in EXAMPLES:
        exec(compile(example, "docs/saving.md", "exec"), names)
    copied = streamer.load(tmp_path / "model-bf16", verify="manifest")
    assert {tensor.dtype for tensor in copied.values()} == {torch.bfloat16}
    assert len([*(tmp_path / "model-bf16").glob("model-*-of-*.safetensors")]) == 2
