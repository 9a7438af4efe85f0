"""Each process fills its part of a DTensor, and of one that is sharded by rows it reads that part alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharded_loads
import torch
import torch.distributed as dist
import warm_python
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial
from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

import streamer
from streamer import TensorParallel
from streamer.core.checkpoint.parallel_plans import KNOWN_WAYS

WHOLE = 304  # bytes of float32, and an integer of 8 bytes for each process
OF_TWO = ["fsdp2", "fsdp2 on meta", "rows", "columns", "columns on meta", "copies", "of the first process"]
OF_FOUR = ["fsdp2 on meta", "rows and columns", "rows of rows", "copies of rows", "fsdp2 over rows"]


def loaded(cases: list[str], processes: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    checkpoint = folder / "model.safetensors"
    save_file(sharded_loads.weights(), checkpoint)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = warm_python.run(sharded_loads.__file__, ",".join(cases), str(checkpoint), str(processes), env=environment)
    assert done.returncode == 0, done.stderr
    reported: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return reported


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return loaded(OF_TWO, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return loaded(OF_FOUR, 4, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("case", OF_TWO[:-1])
def test_two_processes_hold_their_parts_of_what_was_stored(of_two: Any, case: str) -> None:
    assert [(each["wrong"], each["remarks"]) for each in of_two[case]] == [([], [])] * 2


@pytest.mark.parametrize("case", OF_FOUR)
def test_four_processes_hold_their_parts_of_what_was_stored(of_four: Any, case: str) -> None:
    assert [(each["wrong"], each["remarks"]) for each in of_four[case]] == [([], [])] * 4


def test_only_the_rows_of_the_process_are_read(of_two: Any, of_four: Any) -> None:
    assert (
        sum(each["bytes_read"] for each in of_four["fsdp2 on meta"]) < WHOLE + 4 * 40
    )  # what is no parameter is whole
    for case in ("fsdp2", "fsdp2 on meta"):
        first, second = (each["bytes_read"] for each in of_two[case])
        assert second < first < 0.7 * WHOLE


def test_a_part_of_columns_reads_whole_tensors_at_most(of_two: Any) -> None:
    whole = of_two["copies"][0]["bytes_read"]
    assert all(0.8 * whole < each["bytes_read"] <= whole for each in of_two["columns"])


def test_a_process_without_a_part_is_reported(of_two: Any) -> None:
    first, second = (each["error"] for each in of_two["of the first process"])
    assert first is None
    assert "is a DTensor that is shared by other processes than this one" in second


@pytest.fixture
def one_process() -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file({"weight": torch.ones(3, 2), "bias": torch.ones(3)}, tmp_path / "model.safetensors")
    return tmp_path


def test_an_unfinished_sum_is_refused(one_process: Any, checkpoint: Path) -> None:
    part = DTensor.from_local(torch.zeros(3, 2), one_process, [Partial()])
    with pytest.raises(streamer.TargetError, match=r"a DTensor that is placed as .*P.*Redistribute it"):
        streamer.load_into(checkpoint, {"weight": part}, strict=False)


def test_another_shape_of_the_whole_is_refused(one_process: Any, checkpoint: Path) -> None:
    other = DTensor.from_local(torch.zeros(2, 3), one_process)
    with pytest.raises(streamer.TargetError, match=r"has shape \[3, 2\], its target \[2, 3\]"):
        streamer.load_into(checkpoint, {"weight": other}, strict=False)


def test_a_part_that_is_missing_is_not_taken_for_another(one_process: Any, checkpoint: Path) -> None:
    targets = {name: DTensor.from_local(torch.zeros(3, 2), one_process) for name in ("weight", "more")}
    with pytest.raises(streamer.TargetError, match="lacks 1 of the target's tensors: 'more'"):
        streamer.load_into(checkpoint, targets, names="weight")


@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore:.*deprecated")  # torch's
def test_flat_parameters_are_refused_before_the_first_request(one_process: Any) -> None:
    wrapped = FullyShardedDataParallel(nn.Linear(2, 3), device_id=torch.device("cpu"))
    with pytest.raises(streamer.TargetError, match=r"\(FSDP1\), .* shard it with fully_shard"):
        streamer.load_into("http://127.0.0.1:9/a.safetensors", wrapped)


def test_a_backward_through_old_parts_raises(one_process: Any, checkpoint: Path) -> None:
    weight = nn.Parameter(DTensor.from_local(torch.zeros(3, 2), one_process))
    loss = (weight * weight).sum().to_local()
    streamer.load_into(checkpoint, {"weight": weight}, names="weight")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- `streamer.TensorParallel` cuts parameters as the installed transformers does, and knows all of its ways --------


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
