"""``slices=Placements(mesh, …)``: DTensors, equal to those that torch distributes from whole tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from group_ranks import ranks_tell, values
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import streamer
from streamer import Placements


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shapes = {"odd": (7, 5), "cube": (3, 8, 12), "matrix": (10, 16), "vector": (5,), "none": (0, 4), "plain": (2,)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["half"] = torch.randn(9, 9).bfloat16()
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.slow
def test_each_rank_of_a_mesh_holds_what_torch_would_give_it(checkpoint: Path) -> None:
    (reported,) = ranks_tell(4, ("placements", {"uri": str(checkpoint)}))
    got = values(reported)
    assert [each["wrong"] for each in got] == [[]] * 4
    assert sum(each["bytes_read"] for each in got) == 2 * got[0]["whole"]  # each of two loads with group=


def test_a_cast_and_a_stream_give_dtensors(checkpoint: Path, mesh: Any) -> None:
    placed = Placements(mesh, {"*": [Shard(0)]})
    with streamer.stream(checkpoint, slices=placed, names="odd", dtype="float16", order="file") as tensors:
        ((_, tensor),) = tensors
    assert isinstance(tensor, DTensor)
    assert (tensor.dtype, tensor.placements, tuple(tensor.shape)) == (torch.float16, (Shard(0),), (7, 5))


@pytest.mark.parametrize(
    ("placements", "said"),
    [
        ({"*": [Partial()]}, r"'\*' cannot be placed as P"),
        ({"*": Shard(0)}, r"placements for '\*' are no list of placements. One Shard\(dim\) or Replicate\(\) for each"),
        ({"*": ["Shard(0)"]}, "are no list of placements"),
        ({"*": [Shard(0), Replicate()]}, r"there are 2 placements for '\*'. One .* for each of the 1 dimensions"),
        ({7: [Shard(0)]}, "must have strings as keys, not int"),
        ([Shard(0)], r"take a mapping of patterns to placements, not list. For all tensors: \{\"\*\""),
    ],
)
def test_placements_that_are_none_are_refused(mesh: Any, placements: Any, said: str) -> None:
    with pytest.raises(streamer.UsageError, match=said):
        Placements(mesh, placements)


def test_a_value_that_is_no_mesh_is_refused() -> None:
    with pytest.raises(streamer.UsageError, match="mesh of Placements is a DeviceMesh, not str"):
        Placements("cpu", {})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"slices": {"vector": [Shard(1)]}}, r"does not fit tensor 'vector': its shape \[5\] has no dimension 1"),
        ({"slices": {"nothing": [Shard(0)]}}, "no tensor 'nothing'"),
        ({"slices": {"*": [Shard(0)], "odd": None}}, "decides about no tensor"),
        ({"slices": {"odd": [Shard(0)]}, "framework": "np"}, 'Pass framework="pt"'),
    ],
)
def test_what_does_not_fit_is_refused_before_a_byte_is_read(
    checkpoint: Path, mesh: Any, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(streamer.UsageError, match=said):
        streamer.load(checkpoint, **{**how, "slices": Placements(mesh, how["slices"])})


def test_what_gives_no_dtensors_takes_no_placements(checkpoint: Path, mesh: Any) -> None:
    placed = Placements(mesh, {"*": [Replicate()]})
    with pytest.raises(streamer.UsageError, match=r"open\(\) gives no DTensors"):
        streamer.open(checkpoint, slices=placed)
    with pytest.raises(streamer.UsageError, match="load_into takes no Placements"):
        streamer.load_into(checkpoint, {"odd": torch.empty(7, 5)}, slices=placed)


def test_an_exception_of_a_callable_names_the_tensor(checkpoint: Path) -> None:
    said = r"slices= raised for tensor '\w+' of \[.*\]: ZeroDivisionError: "
    with pytest.raises(streamer.UsageError, match=said) as caught:
        streamer.load(checkpoint, slices=lambda name, shape, dtype: 1 // 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
