"""What each rank of a group does in the tests of saves; see `group_cases`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from group_cases import how_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import streamer
from streamer import Placements, Slice, TensorParallel
from streamer._save import parts, rank_saves
from streamer.core.errors import StreamerError
from streamer.core.format.dtypes import TORCH_DTYPES

__all__ = ["CASES", "CHANGES", "PLACED", "linear_model", "tied_model", "whole_tensors"]

CASES: dict[str, Callable[..., Any]] = {}
DTYPES = [getattr(torch, name) for name in TORCH_DTYPES.values() if hasattr(torch, name)]
ROWS, COLUMNS, WHOLE = [Shard(0)], [Shard(1)], [Replicate()]
PLACED: dict[str, tuple[tuple[int, ...], list[Any]]] = {  # shape of the mesh, and placements
    "rows": ((-1,), ROWS),
    "columns": ((-1,), COLUMNS),
    "copies": ((-1,), WHOLE),
    "rows and columns": ((2, -1), [Shard(0), Shard(1)]),
    "columns and rows": ((2, -1), [Shard(1), Shard(0)]),
    "replicas of rows": ((2, -1), [Replicate(), Shard(0)]),
    "replicas of columns": ((-1, 2), [Shard(1), Replicate()]),
    "rows of rows": ((2, -1), [Shard(0), Shard(0)]),
}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


def whole_tensors(mib: float = 0) -> dict[str, torch.Tensor]:
    """Tensors of all dtypes, of uneven and empty shapes; and some large ones."""
    torch.manual_seed(5)
    tensors = {
        f"small.{str(dtype)[6:]}": torch.randint(0, 2, (7, 24), dtype=torch.uint8).view(dtype) for dtype in DTYPES
    }
    tensors["cube"] = torch.randn(5, 6, 7)
    tensors["row"] = torch.randn(1, 33).bfloat16()
    tensors["none"] = torch.zeros(0, 7)
    tensors["few"] = torch.arange(6.0).view(3, 2)
    if mib:
        rows = int(mib * (1 << 20)) // (4 * 509)
        tensors["large.weight"] = torch.randn(rows, 509)
        tensors["large.half"] = torch.randn(509, rows // 2).half()
    tensors["vector"] = torch.arange(13)
    tensors["scalar"] = torch.tensor(2.5)
    return tensors


def placed(whole: torch.Tensor, mesh: Any, placements: list[Any]) -> Any:
    """Make a DTensor of any dtype, without a message between ranks."""
    fitting = [each if not each.is_shard() or each.dim < whole.dim() else Replicate() for each in placements]
    layout = Placements(mesh, {}).layout("", fitting, tuple(whole.shape))
    assert layout is not None
    own = whole.view(torch.uint8) if whole.dtype.itemsize == 1 else whole
    return layout.dtensor(own[layout.box].clone().view(whole.dtype))


def of_kind(kind: str, rank: int, ranks: int, mib: float) -> dict[str, Any]:
    tensors = whole_tensors(mib)
    if kind == "plain":
        return dict(tensors)
    if kind == "mixed":
        kinds = list(PLACED)
        return {
            name: of_mesh(kinds[number % len(kinds)], tensor, ranks) if number % 5 else tensor
            for number, (name, tensor) in enumerate(tensors.items())
        }
    return {name: of_mesh(kind, tensor, ranks) for name, tensor in tensors.items()}


def of_mesh(kind: str, tensor: torch.Tensor, ranks: int) -> Any:
    shape, placements = PLACED[kind]
    sizes = [each if each > 0 else ranks // abs(torch.Size(shape).numel()) for each in shape]
    return placed(tensor, mesh_of(tuple(sizes)), placements)


@lru_cache
def mesh_of(sizes: tuple[int, ...]) -> Any:
    return init_device_mesh("cpu", sizes)


def facts(report: Any) -> Any:
    return {**report.to_dict(), "seconds": 0}


@case
def saves(rank: int, ranks: int, *, saves: list[dict[str, Any]], environment: dict[str, str] | None = None) -> Any:
    """Save several times."""
    os.environ.update(environment or {})
    return [one_save(rank, ranks, **each) for each in saves]


def one_save(rank: int, ranks: int, *, uri: str, kind: str, mib: float = 0, part_mib: int = 16, **how: Any) -> Any:
    parts.PART_BYTES = part_mib << 20
    return facts(streamer.save(of_kind(kind, rank, ranks, mib), uri, **how_of(how, rank)))


def slices_of(kind: str, rank: int, ranks: int) -> Any:
    mesh = mesh_of((2, ranks // 2))
    places = {"large.*": [Shard(1), Shard(0)], "small.*": [Replicate(), Shard(1)], "*cu*": [Shard(0), Shard(0)]}
    kinds: dict[str, Callable[[], Any]] = {
        "patterns": lambda: {"large.*": Slice(1, rank, ranks), "cube": Slice(-1, rank, ranks), "none": None},
        "function": lambda: lambda _, shape, dtype: Slice(0, rank, ranks) if shape else None,
        "blocks": lambda: {"small.*int8": Slice(1, rank, ranks, blocks=2), "few": Slice(0, rank, ranks)},
        "plan": lambda: TensorParallel(rank, ranks, {"large.weight": "colwise", "large.half": "rowwise"}),
        "placements": lambda: Placements(mesh, places),
    }
    return kinds[kind]()


@case
def sliced(rank: int, ranks: int, *, source: str, uri: str, kinds: list[str]) -> Any:
    """Save the plain tensors that a load with the same slices returns."""
    parts.PART_BYTES = 1 << 20
    for kind in kinds:
        slices = slices_of(kind, rank, ranks)
        tensors = streamer.load(source, slices=slices, progress=False)
        plain = {name: each.to_local() if isinstance(each, DTensor) else each for name, each in tensors.items()}
        streamer.save(plain, f"{uri}/{kind}", slices=slices, **how_of({}, rank))


@case
def badly_sliced(rank: int, ranks: int, *, uri: str) -> list[Any]:
    """Save parts that are not those of a tensor; return the errors."""
    told, one = [], torch.ones(4, 6)
    wrong = [
        (one, {"a": Slice(0, 0, 2)}),
        (one, {"a": Slice(0, rank, 3)}),
        (one[: 2 + rank], {"a": Slice(0, rank, 2)}),
        (one[:, : 3 + rank], {"a": Slice(0, rank, 2)}),
        (one, {"a": Slice(rank, rank, 2)}),
        (one, {"a": Slice(0, rank, 2, blocks=1 + rank)}),
        (one, {"a": Slice(2, rank, 2)}),
        (one, {"b": Slice(0, rank, 2)}),
        (one * rank, {"a": Slice(0, rank, 2) if rank else None}),
    ]
    for tensor, slices in wrong:
        try:
            told.append(["", facts(streamer.save({"a": tensor}, uri, slices=slices, **how_of({}, rank)))])
        except StreamerError as error:
            told.append([type(error).__name__, str(error)])
    return told


@case
def experts(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Each rank has an expert that the others do not have, and tensors that all have."""
    tensors = {"shared": torch.arange(7.0), f"expert.{rank}": torch.full((3, 5), float(rank)), "late": torch.ones(2)}
    return facts(asyncio.run(streamer.asave(tensors, uri, **how_of(how, rank))))


@case
def tied(rank: int, ranks: int, *, uri: str, **how: Any) -> Any:
    """Save a module with tied weights, which have fewer rows than there are ranks: the last rank holds none."""
    torch.manual_seed(2)
    model = tied_model()
    fully_shard(model, mesh=mesh_of((ranks,)))
    return facts(streamer.save_model(model, uri, **how_of(how, rank)))


@case
def both_ways(rank: int, ranks: int, *, uri: str) -> Any:
    """Save a module under tensor parallelism and FSDP2, on a mesh of two dimensions."""
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = linear_model()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return facts(streamer.save(model, uri, **how_of({}, rank)))


def linear_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(37, 64), nn.Linear(64, 48), nn.Linear(48, 9))


def tied_model() -> nn.Module:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False), nn.Linear(3, 9))
    model[1].weight = model[0].weight
    return model


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "foreach": lambda it: torch.optim.SGD([it], lr=1.0, foreach=True).step(),
    "fused": lambda it: torch.optim.AdamW([it], lr=1.0, fused=True).step(),
    "for loop": lambda it: torch.optim.SGD([it], lr=1.0, foreach=False).step(),
    "in place": lambda it: it.data.add_(1),
}


@case
def changed(rank: int, ranks: int, *, uri: str, kinds: list[str], who: int) -> Any:
    """Save once for each way to change a parameter, as one rank does between the agreement and the first byte."""
    send, told = rank_saves.RankSave._send, []
    for kind, change in ((kind, change) for kind in kinds for change in CHANGES.values()):
        model = nn.ParameterDict({"a": nn.Parameter(of_mesh(kind, torch.ones(300, 999), ranks))})
        model.a.grad = torch.ones_like(model.a)

        def changed_first(self: Any, *arguments: Any, change: Any = change, model: Any = model) -> None:
            if rank == who:
                change(model.a)
            send(self, *arguments)

        rank_saves.RankSave._send = changed_first
        try:
            told.append(["", facts(streamer.save(model, uri, **how_of({}, rank)))])
        except StreamerError as error:
            told.append([type(error).__name__, str(error)])
    return told


@case
def drifted(rank: int, ranks: int, *, uri: str, who: int) -> Any:
    """Save a large and a small tensor in each placement, after one rank has changed the last element of its part."""
    told = []
    for kind in PLACED:
        large, small = (of_mesh(kind, torch.ones(rows, 999), ranks) for rows in (600, 3))
        for tensors in ({"large": large}, {"small": small}):
            (tensor,) = tensors.values()
            if rank == who:
                tensor.to_local()[-1, -1:] += 1
            try:
                told.append([kind, streamer.save(tensors, f"{uri}/{len(told)}", **how_of({}, rank)).tensors])
            except StreamerError as error:
                told.append([kind, str(error)])
    return told


@case
def opened(rank: int, ranks: int, *, uris: list[str], uri: str) -> Any:
    """Each rank opens a checkpoint, and all save it."""
    with streamer.open(uris[rank]) as checkpoint:
        try:
            return facts(streamer.save(checkpoint, uri, **how_of({}, rank)))
        except StreamerError as error:
            return [type(error).__name__, str(error)]


@case
def twice(rank: int, ranks: int, *, uri: str) -> Any:
    """Call it again with the group while a save runs, in good and in bad ways; return the errors and the report."""
    send, errors = rank_saves.RankSave._send, list[list[str]]()
    again: list[Callable[[], Any]] = [
        lambda: streamer.save({"b": torch.ones(2)}, f"{uri}-b", **how_of({}, rank)),
        lambda: streamer.save({"b": torch.ones(2)}, f"{uri}-b", **how_of({"max_shard_bytes": "5XB"}, rank)),
        lambda: streamer.load(uri, group=dist.group.WORLD),
        lambda: streamer.stream(uri, group=dist.group.WORLD),
    ]

    def nested(*arguments: Any) -> None:
        for call in again:
            try:
                call()
            except StreamerError as error:
                errors.append([type(error).__name__, str(error)])
        send(*arguments)

    rank_saves.RankSave._send = nested
    return errors, facts(streamer.save({"a": torch.ones(3)}, uri, **how_of({}, rank)))


@case
def other_call(rank: int, ranks: int, *, uri: str, who: int) -> Any:
    """One rank loads what the others save."""
    try:
        if rank == who:
            return list(streamer.load(uri, group=dist.group.WORLD, progress=False))
        return facts(streamer.save({"a": torch.ones(3)}, uri, **how_of({"overwrite": True}, rank)))
    except StreamerError as error:
        return [type(error).__name__, str(error)]


@case
def refused(rank: int, ranks: int, *, uri: str, kinds: list[str]) -> Any:
    """Try saves of all kinds with the same group; return their errors."""
    told = []
    for kind in kinds:
        try:
            told.append(["", refused_one(rank, ranks, uri, kind)])
        except streamer.StreamerError as error:
            told.append([type(error).__name__, str(error)])
    return told


def refused_one(rank: int, ranks: int, uri: str, kind: str) -> Any:
    mesh, one = mesh_of((ranks,)), torch.ones(4, 4)
    kinds: dict[str, Any] = {
        "values": lambda: {"a": one * rank},
        "shapes": lambda: {"a": torch.ones(4 + rank)},
        "partial": lambda: {"a": DTensor.from_local(one, mesh, [Partial()])},
        "mixed": lambda: {"a": one if rank else placed(one, mesh, ROWS)},
        "metadata": lambda: {"a": one},
        "dtype of one": lambda: {"a": one if rank else one.to(torch.complex128)},
        "outside": lambda: {"a": placed(one, mesh, ROWS)},
        "alone": lambda: {"a": placed(one, mesh, ROWS)},
    }
    how: dict[str, Any] = {"metadata": {"rank": str(rank)}} if kind == "metadata" else {}
    groups = {"outside": lambda: dist.new_group([0]), "alone": lambda: None}
    group = groups.get(kind, lambda: dist.group.WORLD)()
    if kind == "outside" and rank:
        return None
    return facts(streamer.save(kinds[kind](), uri, progress=False, group=group, **how))
