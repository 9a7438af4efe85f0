"""What the processes of `tests/integrations/dcp/test_ranks.py` do: each saves or loads its part of a model (FSDP2).

    python dcp_ranks.py PROCESSES STEPS

STEPS is JSON, a list of steps: what to do, where, and for each process the options of its storage. Prints JSON: for
each step what each process tells. The processes are forked from one that has imported torch, as those of
`sharded_loads`.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import streamer

ROWS, COLUMNS = 2050, 512  # of float32: a quarter of the rows is larger than what is read with all around it


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(COLUMNS, ROWS)
        self.output = nn.Linear(COLUMNS, ROWS, bias=False)


def weights() -> dict[str, torch.Tensor]:
    """What is saved: each row of numbers is another."""
    named, count = Model().state_dict(), 0
    for name, tensor in named.items():
        named[name] = (torch.arange(count, count + tensor.numel()) % 65521).view(tensor.shape).to(tensor.dtype)
        count += 7919
    return named


def model_of(step: dict[str, Any], world: int) -> nn.Module:
    model = Model()
    mesh = init_device_mesh("cpu", (world,))
    if step.get("placed") == "columns":
        for linear in (model.hidden, model.output):
            linear.weight = nn.Parameter(distribute_tensor(linear.weight.detach(), mesh, [Shard(1)]))
        return model
    return fully_shard(model, mesh=mesh)


def save(step: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    model = model_of(step, world)
    state = get_model_state_dict(model)
    for name, tensor in weights().items():
        mine = state[name]
        mine.copy_(distribute_tensor(tensor, mine.device_mesh, mine.placements))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{step['folder']}/dcp"))
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(f"{step['folder']}/hf", save_distributed=True))
    return {}


def load(step: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    model = model_of(step, world)
    for parameter in model.parameters():
        nn.init.constant_(parameter, -1)
    state = get_model_state_dict(model)
    kept_apart = streamer.Options(coalesce_gap_bytes=0, header_bytes=4096)
    reader = streamer.dcp.StorageReader(step["uri"], storage_options=step["options"][rank], options=kept_apart)
    dcp.load(state, storage_reader=reader)
    set_model_state_dict(model, state)
    wrong = []
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not torch.equal(whole, weights()[name]):
            wrong.append(name)
    mine = sum(each.to_local().nbytes if isinstance(each, DTensor) else each.nbytes for each in state.values())
    assert reader.report is not None
    return {
        "wrong": wrong,
        "bytes": mine,
        "bytes_read": reader.report.bytes_read,
        "readers": dict(reader.report.readers),
    }


def fail(step: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    state = get_model_state_dict(model_of(step, world))
    reader = streamer.dcp.StorageReader(step["uri"], storage_options=step["options"][rank])
    try:
        dcp.load(state, storage_reader=reader)
    except CheckpointException as error:
        return {"failed": sorted(error.failures), "text": str(error)}
    return {}


def run(steps: list[dict[str, Any]], store_path: str, world: int, rank: int) -> list[dict[str, Any]]:
    logging.disable(logging.WARNING)  # torch's, of metadata that it looks for elsewhere
    torch.set_num_threads(1)
    store = dist.FileStore(store_path, world)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=store)
    doing = {"save": save, "load": load, "fail": fail}
    reported = [doing[step["do"]](step, rank, world) for step in steps]
    dist.barrier()
    dist.destroy_process_group()
    return reported


def main() -> None:
    world, steps = int(sys.argv[1]), json.loads(sys.argv[2])
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(world, multiprocessing.get_context("fork")) as processes,
    ):
        reported = list(processes.map(partial(run, steps, f"{folder}/store", world), range(world)))
    print(json.dumps([[each[number] for each in reported] for number in range(len(steps))]))


if __name__ == "__main__":
    main()
