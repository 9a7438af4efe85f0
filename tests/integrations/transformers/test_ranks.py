"""Ranks that share a model (tensor parallelism) read their own rows, and not the others'."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from streamer.integrations.parts_ahead import LEARNED_AFTER

RANK = """
import json, os, sys
import torch
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig
import streamer
from streamer.integrations.transformers import hooks as transformers_hooks

folder, read_bytes = sys.argv[1], []
started = streamer.Stream.__init__

def noted(stream, *args, **named):
    started(stream, *args, **named)
    read_bytes.append(stream.total_bytes)

assert transformers_hooks.weights_hook(transformers_hooks.LIBRARY).fits()  # its trial reads, too
streamer.Stream.__init__ = noted
whole = LlamaForCausalLM.from_pretrained(folder)
try:
    how = {"distributed_config": DistributedConfig(tp_plan="auto")}
except TypeError:  # an older transformers
    how = {"tp_plan": "auto"}
# With options, as otherwise safetensors itself maps files that are in the page cache.
ours = streamer.transformers.from_pretrained(LlamaForCausalLM, folder, options=streamer.Options(), **how)
read = {"streams": len(read_bytes), "bytes": sum(read_bytes)}
words = torch.arange(1, 9)[None]
theirs = LlamaForCausalLM.from_pretrained(folder, **how)
for name, tensor in ours.state_dict().items():
    local, expected = (getattr(each, "to_local", lambda: each)() for each in (tensor, theirs.state_dict()[name]))
    assert torch.equal(local, expected), name
with torch.no_grad():
    assert torch.allclose(ours(words).logits, whole(words).logits, atol=1e-5)
with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(read, file)
torch.distributed.destroy_process_group()
"""

RANK_OVER_A_NETWORK = """
import json, os, sys
import torch
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig
import streamer
from streamer.core.node import leader, member, messages, should_share

uri, folder, storage_options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
should_share.LEAST_BYTES = 2 << 20  # of the plan of all layers; tensors that are read on their own are smaller
leader.ARRIVAL_S = messages.SILENCE_S = member.MEETING_S = 30.0  # the machine may be busy
streams, started = [], streamer.Stream.__init__

def noted(stream, *args, **named):
    started(stream, *args, **named)
    streams.append(stream)

try:
    how = {"distributed_config": DistributedConfig(tp_plan="auto")}
except TypeError:  # an older transformers
    how = {"tp_plan": "auto"}
streamer.Stream.__init__ = noted
ours = streamer.transformers.from_pretrained(LlamaForCausalLM, uri, storage_options=storage_options, **how)
reports = [stream.report for stream in streams]
theirs = LlamaForCausalLM.from_pretrained(folder, **how)
for name, tensor in ours.state_dict().items():
    local, expected = (getattr(each, "to_local", lambda: each)() for each in (tensor, theirs.state_dict()[name]))
    assert torch.equal(local, expected), name
with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
    shared = sum(report.shared_bytes for report in reports)
    json.dump({"read": sum(report.bytes_read for report in reports), "shared": shared}, file)
torch.distributed.destroy_process_group()
"""
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.slow
@pytest.mark.server
def test_columns_are_read_once_by_the_ranks_of_a_node_over_a_network(s3_server, tmp_path):
    small = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **small))
    model.save_pretrained(tmp_path / "model")
    uri = s3_server.upload_folder(tmp_path / "model", "private", "ranks/llama")
    (tmp_path / "rank.py").write_text(RANK_OVER_A_NETWORK)
    options = json.dumps(s3_server.storage_options())
    command = [*LAUNCHER, str(tmp_path / "rank.py"), uri, str(tmp_path / "model"), options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"model/rank{rank}.json").read_text()) for rank in range(2)]
    sizes = {name: tensor.nbytes for name, tensor in model.state_dict().items()}
    columns = sum(size for name, size in sizes.items() if "o_proj" in name or "down_proj" in name)
    on_their_own = sum(size for name, size in sizes.items() if "_proj" not in name)  # by each rank
    of_two_layers = columns // 4  # what the plan follows from
    assert sum(each["read"] for each in ranks) <= 1.02 * sum(sizes.values()) + on_their_own + of_two_layers
    assert sum(each["shared"] for each in ranks) >= 0.9 * (columns - of_two_layers)


@pytest.mark.slow
def test_two_ranks_read_their_rows_and_have_the_whole_model_together(tmp_path):
    small = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **small))
    model.save_pretrained(tmp_path / "model", max_shard_size="300KB")
    (tmp_path / "rank.py").write_text(RANK)
    command = [*LAUNCHER, str(tmp_path / "rank.py"), str(tmp_path / "model")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    total_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    # Columns of a tensor lie in all of its rows: o_proj and down_proj are read whole.
    whole_bytes = sum(
        tensor.nbytes
        for name, tensor in model.state_dict().items()
        if any(part in name for part in ("o_proj", "down_proj", "norm", "embed_tokens", "lm_head"))
    )
    for rank in range(2):
        read = json.loads((tmp_path / f"model/rank{rank}.json").read_text())
        assert 0 < read["bytes"] <= whole_bytes + (total_bytes - whole_bytes) // 2
        of_first_layer = 9
        assert read["streams"] <= 3 + of_first_layer + LEARNED_AFTER + 1
