"""Deferred tensors in the real vLLM: each rank reads what it keeps, and gets what vLLM's own loader gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from tiny_models import QUANTIZATIONS, save_models, save_quantized

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
OTHERS = [
    ("mixtral_fp8", "mixtral", "fp8"),
    ("llama_online", "llama", "16 bits"),  # vLLM quantizes them while it loads them
    ("mixtral_online", "mixtral", "16 bits"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    models = save_models(path)
    quantized = {kind: save_quantized(models["llama"], path / kind, kind) for kind in QUANTIZATIONS}
    for name, base, kind in OTHERS:
        quantized[name] = save_quantized(models[base], path / name, kind)
    return models | quantized


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
    ("ranks", "names"),
    [
        (1, [*QUANTIZATIONS, *(name for name, _, _ in OTHERS)]),
        (2, ["llama", "qwen2", "qwen3", "mixtral", "qwen3_moe", *QUANTIZATIONS, *(name for name, _, _ in OTHERS)]),
        (4, ["llama", "qwen2", "qwen3", "mixtral", "fp8", "gptq", "mixtral_fp8", "llama_online"]),
    ],
)
def test_each_rank_gets_its_parameters(ranks, names, models, urls, tmp_path):
    sharing = {"STREAMER_SHARE": "node", "LOCAL_WORLD_SIZE": "4", "PATIENCE_S": "60"} if ranks > 2 else {}
    lines = told(ranks, {name: models[name] for name in names}, urls, tmp_path, **sharing)
    # Stages of a pipeline; experts for each rank.
    other_ways = {"llama", "mixtral", "qwen3_moe", "mixtral_fp8", "mixtral_online"}.intersection(names)
    assert len(lines) == ranks * (len(names) + len(other_ways))
    for each in lines:
        assert each["is_complete"], each
        assert not each["different"], each
        assert not each["early"], each
        assert each.get("reloaded", True), each
        read, direct, staged = (each[f"{what}_bytes"] / each["kept_bytes"] for what in ("read", "direct", "staged"))
        print(f"{each['model']} {ranks}: read {read:.2f}, direct {direct:.2f}, staged {staged:.2f}")
        # In these tiny ones, runs of columns are shorter than 64 bytes; of GPTQ and AWQ, rows become columns.
        assert staged == 0 or each["model"].split()[0] in (*QUANTIZATIONS, "mixtral_fp8"), each
        small = each["read_bytes"] - each["direct_bytes"] if "pipeline" in each["model"] else 0
        assert small <= 0.05 * each["kept_bytes"], each  # layers of other stages are not read
    # In a tiny model, all scales of GPTQ are small tensors, which every rank reads.
    for name in set(names) - {"gptq", "llama_online"} if sharing else ():
        of_model = [each for each in lines if each["model"] == name]
        total_bytes = sum(path.stat().st_size for path in models[name].glob("*.safetensors"))
        stored = sum(each["stored_bytes"] for each in of_model) / total_bytes
        copied = max((each["direct_bytes"] + each["staged_bytes"]) / each["kept_bytes"] for each in of_model)
        print(f"{name} {ranks}: all ranks read {stored:.3f} of the checkpoint, and copy {copied:.3f} of what one keeps")
        assert stored <= 1.02, (name, stored)
        assert copied <= 1.05, (name, copied)
