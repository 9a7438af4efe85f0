"""``docs/guide.md`` is true: its parts run, one after the other, and the server answers."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

PAGE = (Path(__file__).resolve().parents[2] / "docs/guide.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = {"embed.weight": torch.eye(32)[:, :16].contiguous(), "head.weight": torch.eye(32)[:, :16].contiguous()}
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def test_the_parts_of_the_guide_run_in_order_and_the_model_is_served(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"folder": str(folder)}
    for example in EXAMPLES:
        exec(compile(example, "docs/guide.md", "exec"), names)
    told = capsys.readouterr().out
    assert f"<Checkpoint {folder}: 2 tensors, 4.10 kB in 1 shard>" in told
    assert "(32, 16) torch.float32 2048" in told
    assert names["rows"].shape == (4, 16)
    assert names["halves"]["embed.weight"].dtype == torch.float16
    assert set(names["tensors"]) == {"embed.weight", "head.weight"}
    assert "absent.safetensors: " in told

    server = names["server"]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        asked = urllib.request.Request(f"http://127.0.0.1:{server.server_port}", data=json.dumps([3, 5]).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as answer:
            assert json.load(answer) == [3, 5]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
