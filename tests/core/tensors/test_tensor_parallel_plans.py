"""`streamer.TensorParallel` cuts parameters as the installed transformers does, and knows all of its ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

from streamer import TensorParallel
from streamer.core.checkpoint.slices import KNOWN_WAYS


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def modules(way: str) -> list[nn.Module]:
    """Make what transformers gives such a rule to."""
    with torch.device("meta"):
        if way.startswith("embedding"):
            return [nn.Embedding(8, 4)]
        experts = nn.Module()
        experts.register_parameter("weight", nn.Parameter(torch.empty(4, 6, 8)))
        return [experts] if way == "grouped_gemm" else [nn.Linear(6, 4), nn.Linear(6, 4, bias=False), experts]


def dimension_of(parameter: Any) -> int | None:
    """Say along which dimension transformers cut it."""
    if not isinstance(parameter, DTensor) or parameter.placements[0].is_replicate():
        return None
    return int(parameter.placements[0].dim) % parameter.ndim  # type: ignore[attr-defined]  # of a Shard, strided or not


@pytest.mark.parametrize("way", [way for way in KNOWN_WAYS if way in ALL_PARALLEL_STYLES])
def test_each_parameter_is_cut_along_the_same_dimension(way: str, mesh: Any) -> None:
    for module in modules(way):
        shapes = {name: tuple(each.shape) for name, each in module.named_parameters()}
        for name, shape in shapes.items():
            ALL_PARALLEL_STYLES[way].shard_param(module, name, mesh)
            theirs = module.get_parameter(name)
            if way == "packed_colwise" and name == "bias":
                continue  # which they cut as if it were not packed, and we refuse
            part = TensorParallel(0, 1, {"module": way}).slice_of(f"module.{name}", shape)
            assert (None if part is None else part.dim % len(shape)) == dimension_of(theirs), (name, shape)
            if part is not None:
                assert part.blocks == getattr(theirs.placements[0], "split_factor", 1)  # type: ignore[attr-defined]


def test_every_way_of_transformers_is_known() -> None:
    assert {*ALL_PARALLEL_STYLES} <= {*KNOWN_WAYS}
    assert {"colwise", "rowwise", "embedding_rowwise", "grouped_gemm"} <= {*ALL_PARALLEL_STYLES}
