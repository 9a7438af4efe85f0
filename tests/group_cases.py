"""What each rank of a group does in the tests of groups; `group_ranks` starts the ranks.

A case is a function of the rank, the number of ranks, and arguments from JSON; it returns what JSON has.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import streamer
from streamer import Options, Placements, Slice, TensorParallel

__all__ = ["CASES"]

Case = Callable[..., Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def bytes_of(tensor: Any) -> bytes:
    if hasattr(tensor, "data_ptr"):
        return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return bytes(tensor.tobytes())


def same(one: Any, other: Any) -> bool:
    return (one.dtype, tuple(one.shape), bytes_of(one)) == (other.dtype, tuple(other.shape), bytes_of(other))


def how_of(how: dict[str, Any], rank: int) -> dict[str, Any]:
    """Complete arguments of JSON: those under the number of this rank count for it alone."""
    own = {**how, **how.get("of", {}).get(str(rank), {})}
    own.pop("of", None)
    if "options" in own:
        own["options"] = Options(**own["options"])
    return {"progress": False, "group": dist.group.WORLD, **own}


@case
def load(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    own = how_of(how, rank)
    loaded = streamer.load(own.pop("uri", uri), **own)
    return sorted(loaded)


@case
def whole(rank: int, ranks: int, *, uri: str, expected: str, **how: Any) -> Any:
    """Load by a stream, into targets and as a dict; say what differs from a load by this process alone."""
    alone = {key: value for key, value in how_of(how, rank).items() if key in ("framework", "names", "dtype")}
    known = streamer.load(expected, progress=False, **alone)
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        streamed = list(tensors)
    loaded = streamer.load(uri, **how_of(how, rank))
    wrong = [name for name in known if not same(loaded[name], known[name])]
    wrong += [name for name, tensor in streamed if not same(tensor, known[name])]
    if how.get("framework") != "jax" and "dtype" not in how:
        targets = {
            name: tensor * 0
            if tensor.dtype == torch.float32
            else tensor.copy()
            if how.get("framework") == "np"
            else torch.empty_like(tensor)
            for name, tensor in known.items()
        }
        streamer.load_into(uri, targets, **how_of(how, rank))
        wrong += [name for name in known if not same(targets[name], known[name])]
    report = tensors.report
    return {
        "wrong": wrong,
        "order": [name for name, _ in streamed],
        "bytes_read": report.bytes_read,
        "bytes": report.bytes,
        "complete": report.is_complete and loaded.keys() == known.keys(),
        "verified": dict(Counter(check.verified_by or check.remark for check in report.verified)),
    }


@case
def from_peers(rank: int, ranks: int, *, uri: str, expected: str, **how: Any) -> Any:
    """Load by a stream; say what differs, and what came from where."""
    known = streamer.load(expected, progress=False)
    with streamer.stream(uri, **how_of(how, rank)) as stream:
        loaded = dict(stream)
    wrong = [name for name in known if not same(loaded[name], known[name])]
    report = stream.report
    return {
        "wrong": wrong,
        "complete": report.is_complete,
        "peer_bytes": report.peer_bytes,
        "bytes_read": report.bytes_read,
    }


def parts_of(kind: str, rank: int, ranks: int) -> Any:
    if kind == "plan":
        plan = {"*.up": "colwise", "*.down": "rowwise", "embed": "embedding_rowwise", "*.joint": "packed_colwise"}
        return TensorParallel(rank, ranks, plan)
    if kind == "two by two":  # tensor parallel in pairs, the pairs being replicas
        return {"*.up.weight": Slice(0, rank % 2, 2), "*.down.weight": Slice(1, rank % 2, 2)}
    if kind == "one dimension each":
        return {"*.up.weight": Slice(rank % 2, 0, 2), "*.down.weight": Slice((rank + 1) % 2, 1, 3)}
    if kind == "halves":
        return {"0.up.weight": Slice(0, rank % 2, 2)}
    if kind == "rows":
        return {"0.up.weight": Slice(0, rank, ranks)}
    if kind == "dimensions":
        return {
            "matrix": Slice(1, rank, 4),
            "cube": Slice(0, rank, 3),
            "pair": Slice(1, rank, 2),
            "one": Slice(1, rank, 5),
        }
    return lambda name, shape, dtype: Slice(len(shape) - 1, rank, ranks) if shape else None


@case
def slices(rank: int, ranks: int, *, uri: str, kind: str, **how: Any) -> Any:
    """Load parts; say which differ from a load of the same parts by this process alone."""
    own = {"slices": parts_of(kind, rank, ranks), **how_of(how, rank)}
    with streamer.stream(uri, **own) as tensors:
        got = dict(tensors)
    alone = streamer.load(uri, **{**own, "group": None})
    loaded = streamer.load(uri, **own)
    wrong = [name for name in alone if not same(got[name], alone[name]) or not same(loaded[name], alone[name])]
    report = tensors.report
    verified = dict(Counter(check.verified_by or check.remark for check in report.verified))
    facts = {"bytes_read": report.bytes_read, "bytes": report.bytes, "verified": verified}
    return {"wrong": wrong, "order": list(got), **facts}


@case
def fsdp2(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Fill a module that is sharded by rows: each rank has its own of each parameter."""
    model = nn.Sequential(nn.Linear(512, 1026), nn.Linear(1026, 129))
    mesh = init_device_mesh("cpu", (ranks,))
    fully_shard(model, mesh=mesh)
    report = streamer.load_into(uri, model, **{**how_of(how, rank), "group": mesh.get_group()})
    stored, wrong = load_file(uri), []
    for name, tensor in model.state_dict().items():
        assert isinstance(tensor, DTensor)
        if not torch.equal(tensor.full_tensor(), stored[name]):
            wrong.append(name)
    return {"wrong": wrong, "bytes_read": report.bytes_read, "bytes": report.bytes}


@case
def placements(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Load DTensors in every way on a mesh of two dimensions; say which differ from those that torch distributes."""
    mesh, whole, wrong, read = init_device_mesh("cpu", (2, ranks // 2)), load_file(uri), [], 0
    ways = list(product([Shard(0), Shard(1), Shard(-1), Replicate()], repeat=2))
    for way, group in [*product(ways, [None]), (ways[1], dist.group.WORLD), (ways[3], dist.group.WORLD)]:
        of_vector = [each if each.is_replicate() or each.dim != 1 else Replicate() for each in way]
        placed = Placements(mesh, {"vector": of_vector, "plain": None, "*": list(way)})
        with streamer.stream(uri, slices=placed, **{**how_of(how, rank), "group": group}) as tensors:
            got = dict(tensors)
        read += tensors.report.bytes_read if group else 0
        wrong += [] if type(got.pop("plain")) is torch.Tensor else ["plain"]
        for name, tensor in sorted(got.items()):  # torch sends, and so all ranks need one order
            expected = distribute_tensor(whole[name], mesh, of_vector if name == "vector" else way)
            facts = [(each.placements, each.shape, each.stride()) for each in (tensor, expected)]
            if facts[0] != facts[1] or not same(tensor.to_local(), expected.to_local()):
                wrong.append(f"{name} {way}")
    return {"wrong": wrong, "bytes_read": read, "whole": sum(each.nbytes for each in whole.values())}


@case
def part_of_world(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Load in two groups of their own; the last rank is in none of them."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    if rank == 3:
        return load(rank, ranks, uri=uri, **how, of={"3": {"group": groups[0]}})
    return load(rank, ranks, uri=uri, **how, of={str(rank): {"group": groups[rank // 2]}})


@case
def again(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Load once more after a load that failed on all ranks."""
    failed = False
    try:
        streamer.load(uri, **how_of(how, rank))
    except streamer.StreamerError:
        failed = True
    how.pop("of")
    return [failed, *load(rank, ranks, uri=uri, **how)]


@case
def killed(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    return "loaded"


@case
def busy(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Rank 1 is busy with a tensor for so long that the others end."""
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number == 1:
                time.sleep(9)
    return "loaded"


@case
def left(rank: int, ranks: int, *, uri: str, who: list[int], **how: Any) -> Any:
    """Leave a stream early on some ranks; then load all, if all have left."""
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank in who and number == 1:
                break
    return load(rank, ranks, uri=uri, **how) if len(who) == ranks else "left" if rank in who else "loaded"


@case
def raised(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Raise in the code that takes the tensors."""
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number == 1:
                raise ValueError("of the consumer")


@case
def slow(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number < 3:
                time.sleep(0.7)
    return "loaded"


@case
def late(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Rank 0 has little time for all, and rank 1 takes long."""
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number < 9:
                time.sleep(0.5)
    return "loaded"


@case
def closed_by_thread(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Close the stream of rank 1 by another thread while it waits for rank 2, whose consumer is slow."""
    with streamer.stream(uri, **how_of(how, rank)) as tensors:
        for number, _ in enumerate(tensors):
            if rank == 1 and number == 1:
                threading.Timer(0.5, tensors.close).start()
            if rank == 2 and number < 9:
                time.sleep(0.7)
    return "loaded"


@case
def asynchronous(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    own = how_of(how, rank)
    loaded = asyncio.run(streamer.aload(uri, **own))

    async def streamed() -> list[str]:
        async with streamer.astream(uri, **own) as tensors:
            return [name async for name, _ in tensors]

    return sorted(loaded) == sorted(asyncio.run(streamed()))


@case
def absent(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Rank 1 calls nothing."""
    if rank == 1:
        time.sleep(9)
        return "nothing"
    return load(rank, ranks, uri=uri, **how)


@case
def page(rank: int, ranks: int, *, llama: str, examples: list[str], page: str) -> Any:
    """Run the examples of a page; tell what they have made."""
    names: dict[str, Any] = {"llama": llama, "target": f"{llama}/saved"}
    for example in examples:
        exec(compile(example, page, "exec"), names)
    shapes = {name: list(tensor.shape) for name, tensor in names["tensors"].items()}
    stored = load_file(Path(llama) / "model.safetensors")["lm_head.weight"]
    saved = streamer.load(names["target"], progress=False)["weight"]
    is_filled = torch.equal(names["model"].weight.full_tensor(), stored) and torch.equal(saved, stored)
    return {"shapes": shapes, "is_filled": is_filled}
