"""Deferred tensors in the real vLLM: each rank reads what it keeps, and gets what vLLM's own loader gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from tiny_models import save_models

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def urls(models, s3_server):
    return {name: s3_server.upload_folder(folder, "private", f"deferred/{name}") for name, folder in models.items()}


def told(ranks, models, urls, cache, **variables):
    path = os.pathsep.join([str(HERE.parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_ASSETS_CACHE": str(cache), "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= variables
    pairs = [f"{urls[name]}={folder}" for name, folder in models.items()]
    command = [sys.executable, str(HERE / "ranks_of_models.py"), str(ranks), *pairs]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]


@pytest.mark.parametrize(
    ("ranks", "names"), [(2, ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"]), (4, ["qwen2", "mixtral"])]
)
def test_each_rank_gets_its_parameters(ranks, names, models, urls, tmp_path):
    sharing = {"STREAMER_SHARE": "node", "LOCAL_WORLD_SIZE": "4"} if ranks > 2 else {}  # columns are read once
    lines = told(ranks, {name: models[name] for name in names}, urls, tmp_path, **sharing)
    other_ways = {"llama", "mixtral", "qwen3_moe"}.intersection(names)  # stages of a pipeline; experts for each rank
    assert len(lines) == ranks * (len(names) + len(other_ways))
    for each in lines:
        assert each["is_complete"], each
        assert not each["different"], each
        assert not each["early"], each
        assert each.get("reloaded", True), each
        read, direct, staged = (each[f"{what}_bytes"] / each["kept_bytes"] for what in ("read", "direct", "staged"))
        print(f"{each['model']} {ranks}: read {read:.2f}, direct {direct:.2f}, staged {staged:.2f}")
        assert staged == 0
        small = each["read_bytes"] - each["direct_bytes"] if "pipeline" in each["model"] else 0
        assert small <= 0.05 * each["kept_bytes"], each  # layers of other stages are not read
