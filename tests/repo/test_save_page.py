"""``docs/saving.md`` is true: its examples run, what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import streamer

PAGE = (Path(__file__).resolve().parents[2] / "docs/saving.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_examples_run(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 5
    names = {"target": str(tmp_path / "model")}
    for example in EXAMPLES:
        exec(compile(example, "docs/saving.md", "exec"), names)
    copied = streamer.load(tmp_path / "model-bf16", verify="manifest")
    assert {tensor.dtype for tensor in copied.values()} == {torch.bfloat16}
    assert torch.equal(streamer.load(tmp_path / "model-one.safetensors")["0.bias"], names["model"][0].bias)  # type: ignore[index]
    assert (tmp_path / "model-dcp/.metadata").exists()
    assert (tmp_path / "model-optimizer/.metadata").exists()
    assert len([*(tmp_path / "model-bf16").glob("model-*-of-*.safetensors")]) == 2
