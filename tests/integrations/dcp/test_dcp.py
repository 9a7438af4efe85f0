"""What ``dcp.save`` wrote is loaded by ``dcp.load`` through our reader, from a real S3 server and from a disk."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from servers.tcp_proxy import TcpProxy, http_requests
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

import streamer
from streamer.integrations.dcp import saved_items

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]

LARGE = (600, 512)  # of bfloat16: read apart from what is around it
LARGE_BYTES = 600 * 512 * 2


def state():
    generator = torch.Generator().manual_seed(0)
    layers = {f"layers.{i}.w": torch.rand(LARGE, generator=generator).bfloat16() for i in range(8)}
    others = {
        "bias": torch.rand(7, generator=generator),
        "scale": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "transposed": torch.rand(300, 400, generator=generator).t(),
        "complex": torch.rand(300, 400, generator=generator).to(torch.complex128),
        "small float8": torch.rand(30, 40, generator=generator).to(torch.float8_e4m3fn),
        "float8": torch.rand(600, 700, generator=generator).to(torch.float8_e4m3fn),
    }
    return {"model": {**layers, **others}, "step": 3, "optimizer": {"lr": 0.5, "betas": [0.9, 0.99], "name": "adam"}}


def blank(value):
    if isinstance(value, dict):
        return {name: blank(each) for name, each in value.items()}
    return torch.full_like(value, 1) if isinstance(value, torch.Tensor) else None


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[name], value)
        elif isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name].to(torch.complex128), value.to(torch.complex128)), name
        else:
            assert found[name] == value


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dcp") / "step"
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, thread_count=2))
    assert len(list(path.glob("*.distcp"))) == 2
    return path


@pytest.fixture(scope="session")
def url(folder, s3_server):
    return s3_server.upload_folder(folder, "private", "dcp/step")


@pytest.fixture
def proxy(s3_server):
    with TcpProxy(s3_server.port, http_requests) as between:
        yield between


@pytest.fixture
def through_proxy(s3_server, proxy):
    return {**s3_server.storage_options(), "endpoint_url": f"http://127.0.0.1:{proxy.port}"}


def loaded(found, uri, **how):
    reader = streamer.dcp.StorageReader(uri, **how)
    dcp.load(found, storage_reader=reader)
    return reader.report


def test_all_that_was_saved_is_loaded_from_s3(url, s3_server):
    found = blank(state())
    report = loaded(found, url, storage_options=s3_server.storage_options())
    assert_same(found, state())
    assert report.readers == {"http": 2}
    assert report.is_complete


@pytest.mark.parametrize("options", [None, streamer.Options(memory_limit_bytes=1)], ids=["", "little memory"])
def test_all_that_was_saved_is_loaded_from_a_disk(folder, options):
    found = blank(state())
    places = {name: tensor.data_ptr() for name, tensor in found["model"].items()}
    report = loaded(found, folder, options=options)
    assert_same(found, state())
    assert report.readers == {"file": 2}
    assert {name: tensor.data_ptr() for name, tensor in found["model"].items()} == places


def test_large_tensors_are_read_straight_to_their_place(folder):
    found = {"model": {name: each for name, each in blank(state())["model"].items() if name.startswith("layers.")}}
    report = loaded(found, folder)
    assert_same(found, {"model": {name: each for name, each in state()["model"].items() if name.startswith("layers.")}})
    assert report.bytes_read < 8 * (LARGE_BYTES + 2048)
    assert report.peak_held_bytes < LARGE_BYTES  # only what is around them


def test_only_requested_bytes_are_read_in_few_requests(url, proxy, through_proxy):
    found = {"model": {f"layers.{i}.w": torch.zeros(LARGE, dtype=torch.bfloat16) for i in range(8)}}
    one = {"model": {"layers.5.w": torch.zeros(LARGE, dtype=torch.bfloat16)}}
    loaded(one, url, storage_options=through_proxy)
    of_one, requests_of_one = proxy.passed_bytes, proxy.requests
    assert torch.equal(one["model"]["layers.5.w"], state()["model"]["layers.5.w"])
    assert LARGE_BYTES < of_one < LARGE_BYTES + 100_000
    loaded(found, url, storage_options=through_proxy)
    of_all, requests_of_all = proxy.passed_bytes - of_one, proxy.requests - requests_of_one
    assert 8 * LARGE_BYTES < of_all < 8 * LARGE_BYTES + 100_000
    # Neighbours are one request, up to the engine's block of 1 MiB: eight tensors of 614 KB in two files.
    assert requests_of_all <= requests_of_one + 8


def test_values_are_cast_to_the_dtype_of_their_destination(folder):
    found = {"model": {"layers.0.w": torch.zeros(LARGE), "bias": torch.zeros(7, dtype=torch.float64)}}
    loaded(found, folder)
    assert torch.equal(found["model"]["layers.0.w"], state()["model"]["layers.0.w"].float())
    assert torch.equal(found["model"]["bias"], state()["model"]["bias"].double())


def test_what_is_not_yet_copied_is_bounded(folder):
    found = {"model": {f"layers.{i}.w": torch.zeros(LARGE) for i in range(8)}}  # cast, so copied
    report = loaded(found, folder, options=streamer.Options(memory_limit_bytes=LARGE_BYTES + 4096))
    assert report.peak_held_bytes <= LARGE_BYTES + 4096
    assert torch.equal(found["model"]["layers.7.w"], state()["model"]["layers.7.w"].float())


def test_destinations_of_all_kinds_are_filled(folder):
    expected = state()["model"]["layers.0.w"]
    memory = torch.zeros(2 * LARGE[0] - 100, LARGE[1], dtype=torch.bfloat16)
    shared = torch.zeros(LARGE, dtype=torch.bfloat16)
    found = {
        "layers.0.w": torch.zeros(LARGE[::-1], dtype=torch.bfloat16).t(),
        "layers.1.w": torch.nn.Parameter(torch.zeros(LARGE, dtype=torch.bfloat16)),
        "layers.2.w": shared,
        "layers.3.w": shared,  # tied: the last counts, as for torch
        "layers.4.w": memory[: LARGE[0]],
        "layers.5.w": memory[-LARGE[0] :],
    }
    loaded({"model": found}, folder)
    assert torch.equal(found["layers.0.w"], expected)
    assert torch.equal(found["layers.1.w"], state()["model"]["layers.1.w"])
    assert any(torch.equal(shared, state()["model"][name]) for name in ("layers.2.w", "layers.3.w"))
    assert torch.equal(found["layers.4.w"][:500], state()["model"]["layers.4.w"][:500])
    assert torch.equal(found["layers.5.w"][100:], state()["model"]["layers.5.w"][100:])


def test_autograd_notices_the_change(folder):
    weight = torch.nn.Parameter(torch.ones(LARGE, dtype=torch.bfloat16))
    loss = (weight * weight).sum()
    loaded({"model": {"layers.0.w": weight}}, folder)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Noting(DefaultLoadPlanner):
    """Notes who calls it."""

    def __init__(self):
        super().__init__()
        self.threads, self.committed, self.bytes = set(), [], []

    def resolve_tensor(self, read_item):
        self.threads.add(threading.get_ident())
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item, tensor):
        self.threads.add(threading.get_ident())
        self.committed.append(read_item.dest_index.fqn)

    def load_bytes(self, read_item, value):
        self.threads.add(threading.get_ident())
        self.bytes.append(read_item.dest_index.fqn)
        super().load_bytes(read_item, value)


def test_the_planner_is_called_by_one_thread(folder):
    planner, found = Noting(), blank(state())
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(folder), planner=planner)
    assert planner.threads == {threading.get_ident()}
    assert sorted(planner.committed) == sorted(f"model.{name}" for name in state()["model"] if name != "empty")
    assert {"step", "optimizer.lr", "optimizer.name"} < set(planner.bytes)
    assert_same(found, state())


class OfItsOwn(DefaultLoadPlanner):
    """Gives a new tensor for each request, and copies it when it is filled."""

    def __init__(self):
        super().__init__()
        self.waiting = self.most = 0

    def resolve_tensor(self, read_item):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return torch.empty_like(super().resolve_tensor(read_item))

    def commit_tensor(self, read_item, tensor):
        self.waiting -= 1
        super().resolve_tensor(read_item).copy_(tensor)


def test_a_planner_that_makes_tensors_makes_one_at_a_time(folder):
    planner, found = OfItsOwn(), blank(state())
    dcp.load(found, storage_reader=streamer.dcp.StorageReader(folder), planner=planner)
    assert planner.most == 1
    assert_same(found, state())


def test_an_item_that_differs_from_the_sample_of_its_kind_is_read_again(folder, monkeypatch):
    monkeypatch.setattr(saved_items, "begin_of_data", lambda head: 640)  # wrong for all of them
    found = blank(state())
    loaded(found, folder)
    assert_same(found, state())


def test_a_model_is_loaded_and_set(folder):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(8))
            for layer in self.layers:
                layer.w = torch.nn.Parameter(torch.zeros(LARGE, dtype=torch.bfloat16))

    model = Model()
    weights = {"model": get_model_state_dict(model)}
    loaded(weights, folder)
    set_model_state_dict(model, weights["model"])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state()["model"][name])


def test_the_event_loop_goes_on_while_another_thread_loads(url, s3_server):
    found = blank(state())

    async def load():
        await asyncio.to_thread(loaded, found, url, storage_options=s3_server.storage_options())

    asyncio.run(load())
    assert_same(found, state())


def test_another_checkpoint_is_named_by_its_id(folder, tmp_path):
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "other")
    reader = streamer.dcp.StorageReader(folder)
    found = {"a": torch.zeros(3)}
    dcp.load(found, checkpoint_id=tmp_path / "other", storage_reader=reader)
    assert torch.equal(found["a"], torch.ones(3))
    assert reader.checkpoint_id == str(tmp_path / "other")
    assert reader.validate_checkpoint_id("s3://bucket/step")
    assert not reader.validate_checkpoint_id(3)


def test_metadata_that_a_rank_saved_alone_are_found(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name.replace(".metadata", "__0.metadata")).write_bytes(path.read_bytes())
    found = blank(state())
    loaded(found, tmp_path)
    assert_same(found, state())


def test_an_empty_plan_reads_nothing(folder):
    report = loaded({}, folder)
    assert (report.bytes, report.tensors) == (0, 0)


def test_no_secret_is_shown(tmp_path):
    reader = streamer.dcp.StorageReader("s3://key:s3cret@bucket/step", storage_options={"secret": "s3cret"})
    assert "s3cret" not in f"{reader!r} {reader.checkpoint_id} {vars(reader)}"
