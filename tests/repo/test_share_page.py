"""``docs/share.md`` is true: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import assert_same
from safetensors.torch import save
from servers.scripted_http import ScriptedServer

PAGE = (Path(__file__).resolve().parents[2] / "docs/share.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    whole = {f"{part}.o_proj.weight": torch.rand(64, 64) for part in "ab"}
    with ScriptedServer(save(whole)) as server:
        names: dict[str, Any] = {"uri": server.url, "rank": 1, "ranks": 4}
        for example in EXAMPLES:
            exec(compile(example, "docs/share.md", "exec"), names)
    assert_same(names["tensors"], whole)
    assert_same(names["alone"], whole)
    assert_same(names["mine"], {name: each[:, 16:32].contiguous() for name, each in whole.items()})
    size = 2 * 64 * 64 * 4
    assert capsys.readouterr().out == f"{size} bytes, {size} read here, 0 read by other processes\n"
