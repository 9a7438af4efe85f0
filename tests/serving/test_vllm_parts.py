"""Processes of vLLM that need a part of a checkpoint: ranks with some of the experts, and a draft."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is installed by make test-serving alone")

from tiny_models import save_mixtral
from vllm_draft import DRAFT, save_with_draft
from vllm_engine import assert_equal, loaded

import streamer
from streamer.integrations.vllm import configuration

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent


def run_ranks(place, load_format, cache, **variables):
    """Load on four ranks, with more variables of the environment."""
    path = os.pathsep.join([str(HERE.parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_ASSETS_CACHE": str(cache), "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= variables
    command = [sys.executable, str(HERE / "four_ranks.py"), str(place), load_format]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=240)


def ranks(place, load_format, cache, **variables):
    """Return what each of them tells."""
    done = run_ranks(place, load_format, cache, **variables)
    assert done.returncode == 0, done.stderr[-5000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return sorted(told, key=lambda each: each["rank"])


def test_four_ranks_of_experts_are_four_processes(tmp_path, s3_server):
    folder = save_mixtral(tmp_path / "model")
    url = s3_server.upload_folder(folder, "private", "vllm/four_ranks")
    loads = {"streamer": url, "runai_streamer": url, "safetensors": folder}  # Run:ai's loader with our library
    ours, with_library, theirs = (ranks(place, each, tmp_path) for each, place in loads.items())
    assert [each["rank"] for each in ours] == [0, 1, 2, 3]
    for found in (ours, with_library):
        assert [each["parameters"] for each in found] == [each["parameters"] for each in theirs]
    of_experts = [{name for name in each["given"] if ".experts." in name} for each in ours]
    assert [len(each) for each in of_experts] == [2 * 2 * 3] * 4  # of two layers, two experts with three tensors
    assert len(set.union(*of_experts)) == 2 * 8 * 3
    others = {name for name in streamer.load(folder) if ".experts." not in name}
    assert all(others <= set(each["given"]) for each in ours)


def test_four_ranks_that_share_read_each_tensor_once(tmp_path, s3_server):
    folder = save_mixtral(tmp_path / "model")
    url = s3_server.upload_folder(folder, "private", "vllm/sharing")
    theirs = ranks(folder, "safetensors", tmp_path)
    ours = ranks(url, "streamer", tmp_path, STREAMER_SHARE="node", LOCAL_WORLD_SIZE="4", PATIENCE_S="60")
    assert [each["parameters"] for each in ours] == [each["parameters"] for each in theirs]
    total_bytes = sum(tensor.nbytes for tensor in streamer.load(folder).values())
    read_bytes = sum(each["bytes_read"] for each in ours)
    assert 0.9 * total_bytes <= read_bytes <= 1.02 * total_bytes, (read_bytes, total_bytes)
    assert sum(each["shared_bytes"] for each in ours) > 0


def test_a_shard_that_fails_ends_every_rank_with_our_error(tmp_path):
    folder = save_mixtral(tmp_path / "model")
    shard = max(folder.glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    done = run_ranks(folder, "streamer", tmp_path)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if "streamer.core.errors.TruncatedError: " in line]
    assert sorted(line.partition(":")[0] for line in errors) == [f"[rank{number}]" for number in range(4)]
    assert all(shard.name in line for line in errors)


def test_a_draft_of_multi_token_prediction(tmp_path, s3_server, reports, monkeypatch):
    monkeypatch.setattr(configuration, "get_cache_dir", lambda: str(tmp_path / "cache"))
    folder = save_with_draft(tmp_path / "model")
    url = s3_server.upload_folder(folder, "private", "vllm/draft")
    expected = loaded(folder, "safetensors", **DRAFT)
    assert_equal(loaded(url, "runai_streamer", **DRAFT), expected)
    assert_equal(loaded(url, **DRAFT), expected)
    assert_equal(loaded(url, model_loader_extra_config={"deferred": False}, **DRAFT), expected)
    whole = streamer.load(folder)
    not_read = {name for name in whole if name.startswith("model.layers.")}
    assert len(not_read) == 4
    assert set(reports[-1].names) == whole.keys() - not_read
