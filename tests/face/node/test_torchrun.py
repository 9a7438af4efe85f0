"""Ranks of torchrun share what they read without an option: whole tensors, and the rows of FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from servers.scripted_http import ScriptedServer

RANKS = 2
RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import streamer
from streamer.core.node import leader, member, messages, should_share

uri, folder = sys.argv[1:]
should_share.LEAST_BYTES = 1  # so that a small model is shared by itself
leader.ARRIVAL_S = messages.SILENCE_S = member.MEETING_S = 60.0  # the machine may be busy
torch.set_num_threads(1)
dist.init_process_group("gloo")
expected = load_file(f"{folder}/model.safetensors")
facts = {}

with streamer.stream(uri, progress=False) as stream:
    tensors = dict(stream)
assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
facts["whole"] = stream.report.to_dict()

dist.barrier()
model = torch.nn.Sequential(torch.nn.Linear(1024, 2050), torch.nn.Linear(2050, 129))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
facts["fsdp2"] = streamer.load_into(uri, model, progress=False).to_dict()
assert all(torch.equal(model.state_dict()[name].full_tensor(), tensor) for name, tensor in expected.items())

with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_torchrun_read_each_byte_once_and_fill_fsdp2_modules(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2050), torch.nn.Linear(2050, 129))
    data = save(dict(model.state_dict()))
    (tmp_path / "model.safetensors").write_bytes(data)
    (tmp_path / "rank.py").write_text(RANK)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with ScriptedServer(data) as server:
        command = [*launcher, str(tmp_path / "rank.py"), server.url, str(tmp_path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    for kind in ("whole", "fsdp2"):
        assert sum(facts[kind]["bytes_read"] for facts in ranks) <= 1.02 * len(data)
    assert sum(facts["whole"]["shared_bytes"] for facts in ranks) >= 0.98 * len(data)
