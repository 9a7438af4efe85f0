"""What the processes of `tests/core/tensors/test_sharded_targets.py` do: each loads into its part of a model.

    python sharded_loads.py CASE,CASE CHECKPOINT PROCESSES

Prints JSON: by case what was wrong in each process, and what it read. The processes are forked from one that has
imported torch, which takes longer than all they do.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import streamer


class Model(nn.Module):
    """Seven rows, which no number of processes divides evenly; a bias with fewer rows than four processes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.hidden = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)


def weights() -> dict[str, torch.Tensor]:
    """What the checkpoint holds: each element is another number."""
    named = Model().state_dict()
    count = 0
    for name, tensor in named.items():
        named[name] = torch.arange(count, count + tensor.numel()).view(tensor.shape).to(tensor.dtype)
        count += tensor.numel()
    return named


def fsdp2(mesh: DeviceMesh, device: str) -> nn.Module:
    with torch.device(device):
        model = Model()
    fully_shard(model.hidden, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def placed(mesh: DeviceMesh, placements: list[Placement], device: str = "cpu") -> nn.Module:
    """Place every parameter alike, as tensor parallelism does by hand."""
    model = Model()
    for owner in (model.embedding, model.hidden):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            fitting = [
                each if each.is_replicate() or each.dim < parameter.dim() else Replicate() for each in placements
            ]
            there = distribute_tensor(parameter.detach(), mesh, fitting)
            if device == "meta":
                local = torch.empty_like(there.to_local(), device="meta")
                there = DTensor.from_local(local, mesh, fitting, shape=there.shape, stride=there.stride())
            setattr(owner, name, nn.Parameter(there))
    return model


def over_tensor_parallelism(mesh: DeviceMesh, device: str) -> nn.Module:
    """Shard rows that are sharded already: torch then strides."""
    model = placed(mesh["tensor"], [Shard(0)], device)
    return fully_shard(model, mesh=mesh["data"])


CASES: dict[str, Callable[[int], nn.Module]] = {
    "fsdp2": lambda world: fsdp2(init_device_mesh("cpu", (world,)), "cpu"),
    "fsdp2 on meta": lambda world: fsdp2(init_device_mesh("cpu", (world,)), "meta"),
    "rows": lambda world: placed(init_device_mesh("cpu", (world,)), [Shard(0)]),
    "columns": lambda world: placed(init_device_mesh("cpu", (world,)), [Shard(1)]),
    "columns on meta": lambda world: placed(init_device_mesh("cpu", (world,)), [Shard(1)], "meta"),
    "copies": lambda world: placed(init_device_mesh("cpu", (world,)), [Replicate()]),
    "rows and columns": lambda world: placed(init_device_mesh("cpu", (2, world // 2)), [Shard(0), Shard(1)]),
    "rows of rows": lambda world: placed(init_device_mesh("cpu", (2, world // 2)), [Shard(0), Shard(0)]),
    "copies of rows": lambda world: placed(init_device_mesh("cpu", (2, world // 2)), [Replicate(), Shard(0)]),
    "of the first process": lambda world: placed(DeviceMesh("cpu", [0]), [Shard(0)]),
    "fsdp2 over rows": lambda world: over_tensor_parallelism(
        init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor")), "cpu"
    ),
}


def load(case: str, checkpoint: str, world: int) -> dict[str, Any]:
    model = CASES[case](world)
    kinds = {name: type(parameter).__name__ for name, parameter in model.named_parameters()}
    try:
        report = streamer.load_into(checkpoint, model, progress=False, options=streamer.Options(coalesce_gap_bytes=0))
    except streamer.TargetError as error:
        return {"error": str(error)}
    if case == "of the first process":
        return {"error": None}
    stored, wrong = load_file(checkpoint), []
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not torch.equal(whole, stored[name]):
            wrong.append(name)
    if {name: type(parameter).__name__ for name, parameter in model.named_parameters()} != kinds:
        wrong.append("a class")
    if case in ("fsdp2", "fsdp2 on meta"):
        wrong += ["the output"] * (not _same_output(model, stored))
    return {"wrong": wrong, "bytes_read": report.bytes_read, "remarks": report.remarks}


def _same_output(model: nn.Module, stored: dict[str, torch.Tensor]) -> bool:
    """Compare with a model in one process: what FSDP gathers is its own copy of what was loaded."""
    plain = Model()
    plain.load_state_dict(stored)
    with torch.no_grad():
        there, here = (each.hidden(torch.ones(2, 6)) for each in (model, plain))
    return bool(torch.equal(there, here))


def run(cases: list[str], checkpoint: str, world: int, rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{checkpoint}.store", world)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=store)
    reported = {case: load(case, checkpoint, world) for case in cases}
    dist.barrier()
    dist.destroy_process_group()
    return reported


def main() -> None:
    cases, checkpoint, world = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])
    with ProcessPoolExecutor(world, multiprocessing.get_context("fork")) as processes:
        reported = list(processes.map(partial(run, cases, checkpoint, world), range(world)))
    print(json.dumps({case: [each[case] for each in reported] for case in cases}))


if __name__ == "__main__":
    main()
