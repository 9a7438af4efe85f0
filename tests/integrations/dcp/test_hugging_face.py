"""Checkpoints of safetensors through torch.distributed.checkpoint: what torch's own readers load from a disk."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct

import pytest
import torch
import torch.distributed.checkpoint as dcp
from each_row import each_row
from safetensors.torch import load_file, save_file
from servers.tcp_proxy import TcpProxy, http_requests
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.quantized_hf_storage import (
    QuantizedHuggingFaceStorageReader as TorchQuantizedReader,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import streamer

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]


def weights():
    generator = torch.Generator().manual_seed(0)
    named = {f"layers.{i}.weight": torch.rand(600, 512, generator=generator).bfloat16() for i in range(6)}
    return {**named, "bias": torch.rand(7, generator=generator), "scale": torch.tensor(2.5)}


@pytest.fixture(scope="session")
def sharded(tmp_path_factory):
    """An index and three shards, as `HuggingFaceStorageWriter` writes them."""
    path = tmp_path_factory.mktemp("hf") / "model"
    shards = {name: 1 + number % 3 for number, name in enumerate(weights())}
    dcp.save(weights(), storage_writer=HuggingFaceStorageWriter(str(path), fqn_to_index_mapping=shards))
    assert len(list(path.glob("*.safetensors"))) == 3
    return path


@pytest.fixture(scope="session")
def url(sharded, s3_server):
    return s3_server.upload_folder(sharded, "private", "dcp/hf")


def loaded(uri, names=None, kind=None, **how):
    found = {name: torch.zeros_like(each) for name, each in weights().items() if names is None or name in names}
    reader = (kind or streamer.dcp.StorageReader)(uri, **how)
    dcp.load(found, storage_reader=reader)
    for name, tensor in found.items():
        assert torch.equal(tensor, weights()[name]), name
    return reader.report


def test_shards_with_an_index_are_loaded_from_s3(url, s3_server):
    report = loaded(url, storage_options=s3_server.storage_options())
    assert report.readers == {"http": 3}
    assert report.peak_held_bytes == 0  # all went straight to its place


@pytest.mark.parametrize("kind", [streamer.dcp.StorageReader, streamer.dcp.HuggingFaceStorageReader])
def test_a_folder_an_index_and_a_file_are_loaded_from_a_disk(sharded, tmp_path, kind):
    loaded(sharded, kind=kind)
    loaded(sharded / "model.safetensors.index.json", kind=kind)
    save_file(weights(), tmp_path / "model.safetensors")
    loaded(tmp_path, kind=kind)
    loaded(tmp_path / "model.safetensors", kind=kind)


def test_safetensors_are_chosen_beside_metadata_of_dcp(sharded, tmp_path):
    save_file(weights(), tmp_path / "model.safetensors")
    (tmp_path / ".metadata").write_bytes(b"of something else")
    loaded(tmp_path, kind=streamer.dcp.HuggingFaceStorageReader)
    with pytest.raises(streamer.FormatError):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_only_requested_tensors_are_read(url, s3_server):
    with TcpProxy(s3_server.port, http_requests) as proxy:
        options = {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
        report = loaded(url, ["layers.1.weight"], storage_options=options, options=streamer.Options(header_bytes=4096))
        assert report.bytes_read == 600 * 512 * 2
        assert report.bytes_read < proxy.passed_bytes < report.bytes_read + 50_000


def request_for(name, offsets, lengths, stored_at=None):
    index = dcp.metadata.MetadataIndex(name, torch.Size(stored_at or [0] * len(offsets)))
    dest = torch.Size([0] * len(offsets))
    return ReadItem(LoadItemType.TENSOR, index, dest, index, torch.Size(offsets), torch.Size(lengths))


def read(reader, requests):
    """Read requests of a plan, each to a tensor of its own."""

    class ToTensors(DefaultLoadPlanner):
        def __init__(self):
            super().__init__()
            self.found = []

        def resolve_tensor(self, read_item):
            return torch.zeros(tuple(read_item.lengths))

        def commit_tensor(self, read_item, tensor):
            self.found.append((read_item, tensor))

    planner = ToTensors()
    reader.read_metadata()
    reader.read_data(LoadPlan(requests), planner)
    return [next(tensor for item, tensor in planner.found if item is request) for request in requests]


def test_only_the_rows_of_the_plan_are_read(sharded):
    reader = streamer.dcp.StorageReader(sharded, options=streamer.Options(coalesce_gap_bytes=0))
    expected = weights()["layers.0.weight"].float()
    (rows,) = read(reader, [request_for("layers.0.weight", (100, 0), (50, 512))])
    assert torch.equal(rows, expected[100:150])
    assert reader.report.bytes_read == 50 * 512 * 2
    (block,) = read(reader, [request_for("layers.0.weight", (100, 8), (50, 16))])
    assert torch.equal(block, expected[100:150, 8:24])
    assert reader.report.bytes_read == 50 * 512 * 2  # columns lie in their rows


def test_rows_that_several_requests_share_are_read_once(sharded):
    reader = streamer.dcp.StorageReader(sharded, options=streamer.Options(coalesce_gap_bytes=0))
    wanted = [((100, 0), (50, 256)), ((120, 256), (50, 256)), ((300, 0), (10, 512))]
    found = read(reader, [request_for("layers.0.weight", *each) for each in wanted])
    expected = weights()["layers.0.weight"].float()
    for ((row, column), (rows, columns)), tensor in zip(wanted, found, strict=True):
        assert torch.equal(tensor, expected[row : row + rows, column : column + columns])
    assert reader.report.bytes_read == (70 + 10) * 512 * 2


def test_names_that_look_like_numbered_ranges_are_not_taken_for_them(tmp_path):
    stored = {name: torch.rand(10, 4) for name in ("w", "w (2)", "w (3)")}
    save_file(stored, tmp_path / "model.safetensors")
    wanted = [("w", 0), ("w", 4), ("w", 8), ("w (2)", 0), ("w (2)", 4), ("w (3)", 2)]
    requests = [request_for(name, (row, 0), (2, 4), (0, 0)) for name, row in wanted]
    targets = [torch.zeros(2, 4) for _ in wanted]

    planner = DefaultLoadPlanner()
    planner.state_dict = {f"{number}": target for number, target in enumerate(targets)}
    planned = [
        dataclasses.replace(request, dest_index=dcp.metadata.MetadataIndex(f"{number}"))
        for number, request in enumerate(requests)
    ]
    reader = streamer.dcp.StorageReader(tmp_path)
    reader.read_metadata()
    reader.read_data(LoadPlan(planned), planner)
    for (name, row), target in zip(wanted, targets, strict=True):
        assert torch.equal(target, stored[name][row : row + 2])
    assert reader.report.peak_held_bytes == 0  # each was read straight to its place


def test_a_request_for_more_than_there_is(sharded):
    reader = streamer.dcp.StorageReader(sharded)
    with pytest.raises(streamer.FormatError, match=r"wants \[50, 512\] at \[560, 0\] of 'layers.0.weight'"):
        read(reader, [request_for("layers.0.weight", (560, 0), (50, 512))])
    with pytest.raises(streamer.FormatError, match="holds no part of 'absent'"):
        read(reader, [request_for("absent", (0,), (1,))])


def by_rank(folder, parts, name="w"):
    """Write one file for each part, as the ranks of torch's writer do."""
    for number, (offsets, tensor) in enumerate(parts, 1):
        said = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offsets}}), "format": "pt"}
        save_file({name: tensor.contiguous()}, folder / f"shard-{number:05}-model-00001-of-00001.safetensors", said)


def test_parts_of_ranks_are_joined(tmp_path):
    whole = torch.rand(10, 6)
    by_rank(tmp_path, [([0, 0], whole[:4]), ([4, 0], whole[4:, :2]), ([4, 2], whole[4:, 2:])])
    found = {"w": torch.zeros(10, 6)}
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(tmp_path))
    assert torch.equal(found["w"], whole)
    empty = {}  # filled by the planner, as when a checkpoint is converted
    _load_state_dict(empty, streamer.dcp.StorageReader(tmp_path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert torch.equal(empty["w"], whole)


def test_a_part_that_is_missing_is_noticed(tmp_path):
    """torch's own reader leaves the rest of the tensor as it was."""
    whole = torch.rand(10, 6)
    by_rank(tmp_path, [([0, 0], whole[:4]), ([8, 0], whole[8:])])
    with pytest.raises(streamer.FormatError, match=r"do not form a tensor of shape \[10, 6\]. A shard of some rank"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


@each_row("said", ["[]", "{", "{}", '{"w": {}}', '{"w": {"saved_offsets": [0]}}', '{"w": {"saved_offsets": [0, -1]}}'])
def test_malformed_offsets_are_refused(tmp_path, said):
    save_file({"w": torch.zeros(2, 3)}, tmp_path / "model.safetensors", {"DCP_SHARDING_INFO": said})
    with pytest.raises(streamer.FormatError) as caught:
        streamer.dcp.StorageReader(tmp_path).read_metadata()
    assert caught.value.uri == str(tmp_path / "model.safetensors")


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in "ab":
        save_file({"w": torch.zeros(2, 3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(streamer.FormatError, match="tensor 'w' is in two shards"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()
    by_rank(tmp_path / "..", [])
    (tmp_path / "b.safetensors").unlink()
    by_rank(tmp_path, [([0, 0], torch.zeros(2, 3))])
    with pytest.raises(streamer.FormatError, match="tensor 'w' is in two shards"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_an_index_that_names_an_absent_shard(sharded, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_bytes((sharded / "model.safetensors.index.json").read_bytes())
    with pytest.raises(streamer.ObjectNotFoundError, match="which does not exist"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_an_index_that_promises_more_than_its_shard_holds(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    index = {"weight_map": {"w": "model.safetensors", "v": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(streamer.ShardIndexError, match="promises tensor 'v'"):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_a_truncated_shard(tmp_path):
    save_file({"w": torch.zeros(200)}, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])
    with pytest.raises(streamer.TruncatedError):
        streamer.dcp.StorageReader(tmp_path).read_metadata()


def test_packed_values_are_read_whole_where_they_cannot_be_cut(tmp_path):
    """Two values of F4 share a byte, and torch has one element for both."""
    header = json.dumps({"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes([0x10, 0x32, 0x54, 0x76])
    (tmp_path / "model.safetensors").write_bytes(data)
    found = {"w": torch.zeros(4, dtype=torch.float4_e2m1fn_x2)}
    reader = streamer.dcp.StorageReader(tmp_path)
    dcp.load(found, storage_reader=reader)
    assert found["w"].view(torch.uint8).tolist() == [0x10, 0x32, 0x54, 0x76]


# --- quantised ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """Matrices in squares with a rest, MXFP4, and tensors that are not quantised; scales in another shard."""
    folder = tmp_path_factory.mktemp("quantized")
    generator = torch.Generator().manual_seed(1)

    def integers(*shape, high=256):
        return torch.randint(0, high, shape, generator=generator, dtype=torch.uint8)

    first = {
        "a.weight": (torch.rand(300, 200, generator=generator) * 16 - 8).to(torch.float8_e4m3fn),
        "a.weight_scale_inv": torch.rand(3, 2, generator=generator),
        "b.weight": (torch.rand(128, 128, generator=generator)).to(torch.float8_e4m3fn),
        "norm.weight": torch.rand(200, generator=generator).bfloat16(),
        "experts_blocks": integers(4, 6, 3, 16),
    }
    second = {
        "b.weight_scale_inv": torch.rand(1, 1, generator=generator),
        "experts_scales": 120 + integers(4, 6, 3, high=14),
        "experts_bias": torch.rand(4, 6, generator=generator).bfloat16(),
    }
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    weight_map.update(dict.fromkeys(second, "model-00002-of-00002.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


SQUARES = [
    ((0, 0), (300, 200)),
    ((0, 0), (128, 200)),
    ((100, 0), (90, 200)),
    ((250, 60), (50, 140)),
    ((0, 130), (1, 1)),
]
GROUPS = [((0, 0, 0), (4, 6, 96)), ((1, 0, 0), (2, 6, 96)), ((0, 2, 5), (4, 3, 60)), ((3, 5, 95), (1, 1, 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "offsets", "lengths"),
    [("a.weight", *each) for each in SQUARES]
    + [("experts_blocks", *each) for each in GROUPS]
    + [("b.weight", (0, 0), (128, 128)), ("norm.weight", (10,), (100,)), ("experts_bias", (1, 0), (2, 6))],
    ids=str,
)
def test_what_is_dequantised_equals_torch_s(quantized, name, offsets, lengths, dtype):
    request = request_for(name, offsets, lengths)
    (ours,) = read(streamer.dcp.QuantizedHuggingFaceStorageReader(quantized, target_dtype=dtype), [request])
    theirs_reader = TorchQuantizedReader(str(quantized), target_dtype=dtype)
    metadata = theirs_reader.read_metadata()
    theirs_reader.set_up_storage_reader(metadata, True)

    class ToTensor(DefaultLoadPlanner):
        def resolve_tensor(self, read_item):
            self.found = torch.zeros(tuple(read_item.lengths))
            return self.found

    planner = ToTensor()
    stored_at = (0,) * 4 if name == "experts_blocks" else None
    theirs_reader.read_data(LoadPlan([request_for(name, offsets, lengths, stored_at)]), planner)
    assert torch.equal(ours, planner.found)
    assert bool(ours.abs().sum() > 0)


def test_a_quantised_checkpoint_is_loaded_whole(quantized):
    found = {
        "a.weight": torch.zeros(300, 200),
        "experts_blocks": torch.zeros(4, 6, 96),
        "norm.weight": torch.zeros(200, dtype=torch.bfloat16),
    }
    reader = streamer.dcp.QuantizedHuggingFaceStorageReader(path=str(quantized), thread_count=4)
    dcp.load(found, storage_reader=reader)
    stored = {**load_file(quantized / "model-00001-of-00002.safetensors")}
    factors = stored["a.weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)[:300, :200]
    assert torch.equal(found["a.weight"], stored["a.weight"].float() * factors)
    assert bool((found["experts_blocks"] != 0).any(dim=-1).all())
    assert torch.equal(found["norm.weight"], stored["norm.weight"])


def test_only_the_rows_of_the_plan_are_read_of_quantised_weights(quantized):
    how = {"options": streamer.Options(coalesce_gap_bytes=0)}
    reader = streamer.dcp.QuantizedHuggingFaceStorageReader(quantized, **how)
    read(reader, [request_for("a.weight", (130, 0), (20, 200))])
    assert reader.report.bytes_read == 20 * 200 + 2 * 4  # one row of factors
    read(reader, [request_for("experts_blocks", (1, 0, 0), (1, 6, 96))])
    assert reader.report.bytes_read == 6 * 3 * 16 + 6 * 3


def test_scales_that_do_not_fit_are_refused(quantized):
    with pytest.raises(streamer.FormatError, match=r"has shape \[300, 200\], its scales \[3, 2\]. Pass the block_size"):
        streamer.dcp.QuantizedHuggingFaceStorageReader(quantized, block_size=64).read_metadata()


@pytest.mark.parametrize(
    "named",
    [{"target_dtype": "float32"}, {"target_dtype": torch.int8}, {"block_size": 0}, {"thread_count": 0}, {"path": 3}],
    ids=str,
)
def test_wrong_arguments(named):
    with pytest.raises(streamer.UsageError):
        streamer.dcp.QuantizedHuggingFaceStorageReader(**{"path": "a", **named})


class StateDictAdapter:
    """Calls the readers as torchtitan's adapters of models do (its class of this name, and that of gpt-oss)."""

    def get_hf_storage_reader(self, path, from_quantized=False):
        if from_quantized:
            return streamer.dcp.QuantizedHuggingFaceStorageReader(
                path=path, target_dtype=torch.float32, block_size=128, thread_count=4
            )
        return streamer.dcp.HuggingFaceStorageReader(path)


def test_the_hook_of_torchtitan(sharded, quantized, tmp_path):
    adapter = StateDictAdapter()
    found = {name: torch.zeros_like(each) for name, each in weights().items()}
    dcp.load(found, storage_reader=adapter.get_hf_storage_reader(str(sharded)))
    assert torch.equal(found["layers.3.weight"], weights()["layers.3.weight"])
    found = {"b.weight": torch.zeros(128, 128)}
    dcp.load(found, storage_reader=adapter.get_hf_storage_reader(str(quantized), True))
    assert bool(found["b.weight"].any())
    with pytest.raises(CheckpointException, match="The folder is empty"):
        dcp.load(found, storage_reader=adapter.get_hf_storage_reader(str(tmp_path)))


def rows(size, parts):
    begins = [size * number // parts for number in range(parts + 1)]
    return [([begin, 0], torch.ones(end - begin, 3)) for begin, end in itertools.pairwise(begins)]


@pytest.mark.parametrize(
    "left",
    [
        rows(8, 4)[2:],  # of four ranks, the files of the last two are not replaced by two ranks
        rows(8, 3)[1:2],
        [([0, 2], torch.ones(8, 1))],
        [([0, 0], torch.ones(8, 3))],
        [*rows(8, 3)[1:], ([9, 0], torch.ones(1, 3))],
    ],
    ids=["same offset", "across", "columns", "whole", "of another shape"],
)
def test_shards_of_an_earlier_save_in_another_sharding_are_named_regression(left, tmp_path):
    by_rank(tmp_path, [*rows(8, 2), *left])
    with pytest.raises(streamer.FormatError, match=r"parts of tensor 'w' overlap in .*shard.*earlier save") as caught:
        streamer.dcp.StorageReader(tmp_path).read_metadata()
    assert "in another sharding" in str(caught.value)
