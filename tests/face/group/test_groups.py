"""``group=``: the ranks of a process group read each byte once, and get what each would get alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from any_dtype import DTYPES, SHAPES, file_of
from group_ranks import ranks_tell, second_rank, values
from safetensors.torch import save_file
from servers.seaweedfs import SeaweedServer
from servers.tcp_proxy import TcpProxy, http_requests

import streamer

pytestmark = pytest.mark.slow
MIB = 1 << 20


def weights(scale: int = 1) -> dict[str, torch.Tensor]:
    """A model with large and small tensors, of several dtypes; each element is another number."""
    shapes: dict[str, tuple[int, ...]] = {
        "0.up.weight": (1024 * scale, 1024),
        "0.down.weight": (1000, 1027 * scale),
        "0.up.bias": (1024,),
        "0.joint.weight": (2 * 48, 40),
        "1.up.weight": (515 * scale, 1024),
        "1.down.weight": (64, 700),
        "embed.weight": (1031, 128),
        "scalar": (),
        "none": (0, 8),
        "seven": (7,),
    }
    made = {}
    for number, (name, shape) in enumerate(shapes.items()):
        generator = torch.Generator().manual_seed(number)
        made[name] = torch.randn(shape, generator=generator).to([torch.float32, torch.bfloat16][number % 2])
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tensors = weights()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, folder / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[5:]}, folder / "model-00002-of-00002.safetensors")
    return folder


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_whole_tensors_are_read_once_and_equal_on_all_ranks(checkpoint: Path) -> None:
    how = {"uri": str(checkpoint), "expected": str(checkpoint)}
    cases = [
        ("whole", how),
        ("whole", {**how, "framework": "np", "names": ["*.bias", "seven", "scalar", "none", "embed*"]}),
        ("whole", {**how, "dtype": "float16"}),
        ("whole", {**how, "options": {"memory_limit_bytes": 1}}),
    ]
    for ranks in (2, 3):
        for reported in ranks_tell(ranks, *cases):
            got = values(reported)
            assert all(each["wrong"] == [] and each["complete"] for each in got)
            assert sum(each["bytes_read"] for each in got) == got[0]["bytes"]  # each byte once, none of a gap
            assert all(each["order"] == got[0]["order"] for each in got)


def test_each_rank_gets_the_tensors_that_it_names_and_what_several_name_is_read_once(checkpoint: Path) -> None:
    names = {
        "0": {"names": ["0.*", "scalar"]},  # some with rank 1, some alone
        "1": {"names": ["0.up.weight", "none", "1.down.weight"]},
        "2": {"names": "embed.weight"},  # nothing that another rank wants
    }
    how = {"uri": str(checkpoint), "of": names}
    expected = {"expected": str(checkpoint)}
    most = {"2": names["2"]}  # rank 2 alone wants less
    wholes = [("whole", {**how, **expected}), ("whole", {**how, **expected, "of": most})]
    cases = [*wholes, ("slices", {**how, "kind": "plan"})]
    whole, others_all, cut = ranks_tell(3, *cases)
    for reported in (whole, others_all, cut):
        assert all(each["wrong"] == [] for each in values(reported))
    got = values(whole)
    assert [sorted(each["order"]) for each in got] == [
        ["0.down.weight", "0.joint.weight", "0.up.bias", "0.up.weight", "scalar"],
        ["0.up.weight", "1.down.weight", "none"],
        ["embed.weight"],
    ]
    wanted = {name for each in got for name in each["order"]}
    assert sum(each["bytes_read"] for each in got) == sum(
        tensor.nbytes for name, tensor in weights().items() if name in wanted
    )


def test_a_manifest_is_compared_although_no_rank_reads_a_whole_tensor(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    streamer.write_manifest(tmp_path)
    how = {"uri": str(tmp_path), "verify": "manifest"}
    cases = [
        ("whole", {**how, "expected": str(tmp_path)}),
        ("whole", {**how, "expected": str(tmp_path), "names": "seven", "of": {"1": {"names": ["*weight", "none"]}}}),
        ("slices", {**how, "kind": "plan"}),
        ("slices", {**how, "kind": "one dimension each"}),
    ]
    whole, named, cut, partial = map(values, ranks_tell(3, *cases))
    assert all(each["wrong"] == [] for reported in (whole, named, cut, partial) for each in reported)
    sources = {"manifest (crc32c)": 2}
    assert [each["verified"] for each in whole] == [sources] * 3
    assert [each["verified"] for each in cut] == [sources] * 3
    assert named[1]["verified"] == sources
    assert named[0]["verified"] == {"none of its tensors was read": 1, "manifest (crc32c)": 1}
    # Rank 2 keeps the same parts as rank 0, so some rows and columns are read by no rank.
    assert "only a part of a tensor was read by the ranks of the group" in partial[0]["verified"]


def test_every_dtype_arrives_as_it_is(tmp_path: Path) -> None:
    cases = []
    for dtype in DTYPES:
        file = tmp_path / f"{dtype}.safetensors"
        file.write_bytes(file_of({name: (dtype, shape) for name, shape in SHAPES.items()}))
        cases.append(("whole", {"uri": str(file), "expected": str(file)}))
        names = ["matrix", "cube", "pair", "one"]
        cases.append(("slices", {"uri": str(file), "kind": "dimensions", "names": names}))
    for reported in ranks_tell(2, *cases):
        assert all(each["wrong"] == [] for each in values(reported))


def test_parts_are_equal_to_those_that_each_rank_reads_alone(checkpoint: Path) -> None:
    kinds = ["plan", "two by two", "one dimension each", "last dimension"]
    for reported in ranks_tell(4, *[("slices", {"uri": str(checkpoint), "kind": kind}) for kind in kinds]):
        got = values(reported)
        assert all(each["wrong"] == [] for each in got)
        assert sum(each["bytes_read"] for each in got) <= size_of(checkpoint)
        assert all(each["order"] == got[0]["order"] for each in got)


def test_rows_are_read_by_their_rank_alone_and_shared_ones_in_stripes(tmp_path: Path) -> None:
    save_file({"0.up.weight": torch.arange(4096.0 * 256).view(4096, 256)}, tmp_path / "a.safetensors")
    rows, halves = ranks_tell(4, *[("slices", {"uri": str(tmp_path), "kind": kind}) for kind in ("rows", "halves")])
    assert [(each["wrong"], each["bytes"], each["bytes_read"]) for each in values(rows)] == [([], MIB, MIB)] * 4
    assert [(each["wrong"], each["bytes"], each["bytes_read"]) for each in values(halves)] == [([], 2 * MIB, MIB)] * 4


def test_a_sharded_module_is_filled_and_each_rank_reads_its_rows(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 1026), torch.nn.Linear(1026, 129))
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    (reported,) = ranks_tell(2, ("fsdp2", {"uri": str(tmp_path / "model.safetensors")}))
    got = values(reported)
    assert [each["wrong"] for each in got] == [[], []]
    assert sum(each["bytes_read"] for each in got) == sum(each["bytes"] for each in got)
    assert all(each["bytes_read"] < 0.6 * sum(each["bytes"] for each in got) for each in got)


@pytest.mark.server
def test_a_server_sends_each_byte_once_to_a_group(s3_server: SeaweedServer, tmp_path: Path) -> None:
    save_file(weights(scale=4), tmp_path / "model.safetensors")
    url = s3_server.upload_folder(tmp_path, "private", "groups/once")
    for name, more in [("load", {}), ("slices", {"kind": "plan"})]:
        with TcpProxy(s3_server.port, http_requests) as proxy:
            options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
            # A checkpoint of this size has a header of a thousandth; the default first read is a 64th of a shard.
            how = {"uri": url, "storage_options": options, "options": {"header_bytes": 4096}, **more}
            (reported,) = ranks_tell(4, (name, how))
            values(reported)
            loads = 6 if name == "slices" else 1  # two by the group, and one by each rank alone
            assert proxy.passed_bytes <= loads * 1.02 * size_of(tmp_path)


def test_tasks_load_together(checkpoint: Path) -> None:
    (reported,) = ranks_tell(2, ("asynchronous", {"uri": str(checkpoint)}))
    assert values(reported) == [True, True]


def test_only_the_ranks_of_the_group_take_part(checkpoint: Path) -> None:
    (reported,) = ranks_tell(4, ("part_of_world", {"uri": str(checkpoint)}))
    assert [each.get("value") for each in reported[:3]] == [sorted(weights())] * 3
    assert reported[3]["error"] == "OptionError"
    assert "of which this process is no member" in reported[3]["text"]


@pytest.fixture
def one_rank() -> Iterator[Any]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_rank_reads_alone(checkpoint: Path, one_rank: Any) -> None:
    loaded = streamer.load(checkpoint, group=one_rank, verify="off")
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in weights().items())


@pytest.mark.parametrize("group", ["world", 0, torch.distributed, object()])
def test_what_is_no_group_is_refused(group: Any) -> None:
    with pytest.raises(streamer.OptionError, match=r"group is a ProcessGroup of torch.distributed, not \w+. Pass"):
        streamer.load("/absent", group=group)


def test_open_takes_no_group(checkpoint: Path, one_rank: Any) -> None:
    with pytest.raises(streamer.UsageError, match=r"open\(\) reads for one rank, .* and so takes no group="):
        streamer.open(checkpoint, group=one_rank)


def test_the_default_device_of_torch_does_not_matter_regression(tmp_path: Path) -> None:
    tensors = {f"layers.{number}": torch.full((1000,), float(number)) for number in range(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    with second_rank(str(tmp_path)) as group, torch.device("meta"):
        got = streamer.load(tmp_path, group=group)
    assert all(torch.equal(got[name], tensor) for name, tensor in tensors.items())
