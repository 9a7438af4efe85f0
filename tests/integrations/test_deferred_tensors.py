"""Deferred tensors: whatever a loader does with them, the parameters are those that tensors with data give."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import io
import logging
import os
import pickle
import threading
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import streamer
from streamer.core.checkpoint import tensor_parts
from streamer.core.request.request import Request
from streamer.core.tensors.shared_memory import Elements
from streamer.integrations.serving import planned_reads, recorder
from streamer.integrations.serving.deferred_tensors import Deferred
from streamer.integrations.serving.planned_reads import PlannedCheckpoint
from streamer.integrations.serving.recorder import Recorder

E4M3 = torch.float8_e4m3fn


def tensors():
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(8, 12, generator=generator) for name in "qkv"}
    made["half"] = torch.randn(6, 10, generator=generator).to(torch.bfloat16)
    made["odd"] = torch.randn(3, generator=generator).to(E4M3)  # the tensors behind it are at odd bytes
    made["experts"] = torch.randn(4, 6, 8, generator=generator)
    made["packed"] = torch.randint(-(2**31), 2**31 - 1, (8, 4), generator=generator, dtype=torch.int32)
    made["scalar"] = torch.tensor(2.5)
    made["none"] = torch.zeros(0, 4)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("deferred")
    safetensors.torch.save_file(tensors(), path / "model.safetensors")
    return path


@pytest.fixture(autouse=True)
def _all_are_deferred(monkeypatch):
    monkeypatch.setattr(planned_reads, "MOST_EAGER_BYTES", 0)
    monkeypatch.setattr(tensor_parts, "LEAST_RUN_BYTES", 1)


class OneByOne(dict):
    """Takes tensors when a loader asks for them."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def __missing__(self, name):
        while name not in self:
            self.update([next(self.given)])
        return self[name]


class Loads:
    """Both loads of one loader, a function that takes the tensors and returns the parameters that it filled."""

    def __init__(self, folder, loader, model=None, takes=dict):
        self.recorder, self.checkpoint = Recorder(), PlannedCheckpoint(Request(uri=str(folder), progress=False))
        assert self.checkpoint.is_deferrable()
        with self.recorder.around(model):
            given = self.checkpoint.tensors(self.recorder)
            self.found = loader(takes(given))
            list(given)
        self.expected = loader(tensors())

    def assert_equal(self):
        assert len(self.found) == len(self.expected)
        for found, expected in zip(self.found, self.expected, strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (found, expected)))


def whole(w):
    made = torch.nn.Parameter(torch.zeros(8, 12), requires_grad=False)
    made.data.copy_(w["q"])
    return [made]


def fused(w):
    made = torch.nn.Parameter(torch.zeros(24, 12), requires_grad=False)
    for at, name in enumerate("qkv"):
        made.data.narrow(0, at * 8, 8).copy_(w[name])
    return [made]


def rows_of_a_rank(w):
    made = torch.zeros(12, 12)
    for at, name in enumerate("qkv"):
        made[at * 4 : at * 4 + 4].copy_(w[name].narrow(0, 4, 4))
    return [made]


def columns_of_a_rank(w):
    made = torch.zeros(8, 6)
    made.copy_(w["q"].narrow(1, 6, 6))
    return [made]


def one_tensor_that_is_divided(w):
    made = [torch.zeros(2, 12) for _ in range(4)]
    for each, part in zip(made, w["q"].chunk(4), strict=True):
        each.copy_(part)
    query, key = w["k"].split([6, 2])
    return [*made, torch.zeros(6, 12).copy_(query), torch.zeros(2, 12).copy_(key)]


def columns_of_a_fused_parameter(w):
    made = torch.zeros(8, 36)
    for at, name in enumerate("qkv"):
        made[:, at * 12 : at * 12 + 12] = w[name]
    return [made]


def experts(w):
    gate_up, down = torch.zeros(4, 6, 8), torch.zeros(4, 8, 3)
    for at in range(4):
        gate_up[at, :3].copy_(w["experts"][at].narrow(0, 3, 3))
        gate_up.data[at].narrow(0, 3, 3).copy_(w["experts"].select(0, at)[:3])
        down[at] = w["experts"][at].t().narrow(1, 0, 3)
    return [gate_up, down]


def fused_experts(w):
    return [torch.zeros(4, 3, 8).copy_(w["experts"][:, 3:]), torch.zeros(4, 8, 6).copy_(w["experts"].transpose(1, 2))]


def tied(w):
    made = torch.zeros(8, 12)
    made.copy_(w["q"])
    return [made, torch.zeros(8, 12).copy_(w["q"]), torch.zeros(4, 12).copy_(w["q"][2:6])]


def casts(w):
    return [
        torch.zeros(8, 12, dtype=torch.bfloat16).copy_(w["q"]),
        torch.zeros(6, 10).copy_(w["half"]),
        torch.zeros(8, 12).copy_(w["q"].to(torch.float16)),  # rounded on its way
        torch.zeros(8, 12).copy_(w["q"].to(torch.float16).float()),
        torch.zeros(8, 12, dtype=torch.float64).copy_(w["k"].half().to("cpu").t().contiguous().t()),
        torch.zeros(3).copy_(w["odd"]),
    ]


def other_bits(w):
    return [
        torch.zeros(6, 10, dtype=torch.int16).copy_(w["half"].view(torch.int16)),
        torch.zeros(8, 16, dtype=torch.uint8).copy_(w["packed"].view(torch.uint8)),
        torch.zeros(8, 4, dtype=torch.uint8).copy_(w["packed"].view(torch.uint8)[:, 3:7]),
        torch.zeros(8, 4, dtype=torch.uint8).copy_(w["packed"].t().contiguous().view(torch.uint8)[0].view(8, 4)),
    ]


def shapes(w):
    assert w["q"].shape == (8, 12)
    assert w["q"].is_contiguous()
    assert not w["q"].t().is_contiguous()
    assert (w["half"].dtype, w["half"].numel(), w["half"].ndim) == (torch.bfloat16, 60, 2)
    return [
        torch.zeros(1, 96, 1).copy_(w["q"].view(-1).unsqueeze(0).unsqueeze(-1)),
        torch.zeros(4, 2, 12).copy_(w["q"].reshape(4, 2, 12)),
        torch.zeros(96).copy_(w["q"].t().reshape(-1)),
        torch.zeros(8, 12).copy_(w["q"].contiguous()),
        torch.zeros(12, 8).copy_(w["q"].T.clone()),
        torch.zeros(8, 12).copy_(torch.stack(w["q"].unbind(0))),
        torch.zeros(4, 12).copy_(w["q"][::2]),
        torch.empty_like(w["q"]).fill_(1),
        w["half"].new_zeros(3),
        torch.zeros(2, 4, 6, 8).copy_(w["experts"]),  # broadcast
        torch.zeros(8, 12).copy_(w["q"][0].expand(8, 12)),
        torch.zeros(3, 8).copy_(w["experts"][1][3:, :].clone().clone().view(24).view(3, 8)),
        torch.zeros(0, 4).copy_(w["none"]),
    ]


def scalars(w):
    made = torch.zeros(5)
    made[1] = w["scalar"]
    made[2].copy_(w["scalar"])
    made[3] = w["q"][2, 3]
    made.data[4:].fill_(w["scalar"].item())
    return [made]


def computed(w):
    return [
        w["q"] + w["k"],
        torch.cat([w["q"], w["v"]]),
        w["q"].abs().max(),
        torch.zeros(8, 12).copy_(w["q"].flip(0)),
        torch.where(w["q"] > 0, w["q"], w["k"]),
        torch.tensor(w["q"].tolist()),
        torch.from_numpy(w["q"].numpy().copy()),
        pickle.loads(pickle.dumps(w["q"])),
        copy.deepcopy(w["k"]),
        torch.tensor(float(w["scalar"])),
        torch.tensor([w["q"].data_ptr() > 0, bool(w["scalar"] > 2), w["q"].is_pinned(), repr(w["q"]) != ""]),
        torch.utils.dlpack.from_dlpack(w["q"].t()).clone(),
        w["half"].float().repeat_interleave(2, 0),
        torch.tensor(w["q"].untyped_storage().nbytes()),
        w["q"][1:].untyped_storage().nbytes() and w["q"][1:, 2:].numpy().sum() + torch.zeros(1),
        torch.zeros(8, 12).copy_(w["q"].share_memory_()),
        torch.load(saved(w["q"])),
    ]


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


def a_parameter_read_in_the_middle(w):
    made, other, third = torch.zeros(8, 12), torch.zeros(8, 12), torch.zeros(8, 12)
    made.copy_(w["q"])
    other.copy_(made.clone())
    third.copy_(w["k"])
    third.data.neg_()
    made[2:4].mul_(2)
    return [made, other, third, -made, torch.cat([made, third])]


def a_parameter_written_twice(w):
    made, rows, columns = torch.zeros(8, 12), torch.zeros(8, 12), torch.zeros(8, 12)
    made.copy_(w["q"])
    made.copy_(w["k"])
    rows.copy_(w["q"])
    rows[2:5].copy_(w["k"][:3])
    rows[4:6].copy_(w["v"][:2])
    rows[0] = 7
    columns[:, :6] = w["q"][:, :6]
    columns[:, 6:] = w["k"][:, :6]
    columns[3:5, 4:8] = w["v"][:2, :4]
    return [made, rows, columns]


def data_beside_a_region_that_waits(w):
    made = torch.zeros(10, 12)
    made[:8].copy_(w["q"])
    made[8:].fill_(3)
    made[8:, 2:4].copy_(torch.ones(2, 2))
    return [made]


def parameters_of_one_memory(w):
    made = torch.zeros(8, 12)
    same = made.view(12, 8)
    made.copy_(w["q"])
    half = same[:6] * 2
    same[6:].copy_(w["k"].view(12, 8)[:6])
    return [made, half, same]


def a_tensor_changed_in_place(w):
    before, copied, after = torch.zeros(4, 12), torch.zeros(8, 12), torch.zeros(8, 12)
    view, cast = w["q"][2:6], w["q"].double()
    before.copy_(view)
    w["q"].mul_(2)
    copied.copy_(cast)
    after.copy_(w["q"])
    w["k"][1] = 5
    w["k"][:, 0].copy_(w["v"][:, 1])
    cast.add_(1)
    return [
        before,
        copied,
        after,
        torch.zeros(4, 12).copy_(view),
        torch.zeros(8, 12).copy_(w["k"]),
        torch.zeros(8, 12).copy_(cast),
        torch.zeros(8, 12).copy_(w["k"].clone()),
        torch.zeros(8, 24).view(torch.int16).copy_(w["k"].view(torch.int16).repeat(1, 2)),
    ]


def parameters_that_get_other_memory(w):
    made = torch.nn.Parameter(torch.zeros(8, 12), requires_grad=False)
    made.data.copy_(w["q"])
    made.data = made.data.t().contiguous()
    other = torch.nn.Parameter(torch.zeros(8, 12), requires_grad=False)
    other.copy_(w["k"])
    kept = other.data
    other.data = torch.ones(2)
    return [made, kept, other]


def the_device_meta(w):
    made = torch.zeros(8, 12, device="meta")
    made.copy_(w["q"])
    return [torch.zeros(made.shape)]


def in_inference_mode(w):
    with torch.inference_mode():
        made = torch.zeros(4, 24)
        made.copy_(w["q"].reshape(4, 24))
        cast = torch.zeros(12, 8).copy_(w["k"].t().reshape(12, 8).to(torch.float16))
        return [
            made,
            cast,
            torch.zeros(96).copy_(w["v"].t().reshape(96)),
            torch.zeros(8, 12).copy_(w["v"].contiguous()),
        ]


def views_of_memory(w):
    conjugated = torch.view_as_complex(w["q"].reshape(8, 6, 2)).conj()
    return [
        torch.zeros(8, 6, dtype=torch.complex64).copy_(conjugated),
        torch.zeros(3).copy_(w["q"].t().contiguous().as_strided((3,), (1,))),
        torch.zeros(12).copy_(w["q"][2:].clone().as_strided((12,), (1,), 0)),
        torch.zeros(3).copy_(w["q"].as_strided((3,), (2,), 1)),
    ]


def written_through_another_view(w):
    torch.mul(w["q"][:2], 2, out=w["q"][:2])
    w["k"][:2].numpy()[:] = 3
    return [torch.zeros(8, 12).copy_(w["q"]), torch.zeros(8, 12).copy_(w["k"])]


def text(w):
    return [torch.tensor(float(f"{w['q'][0, 0]:.2f}"))]


def deferred_tensors_as_data(w):
    made = [torch.nn.Parameter(torch.zeros(8, 12), requires_grad=False) for _ in range(5)]
    made[0].data = w["q"]
    made[1].data = w["q"].t()
    made[2].data = w["k"].to(torch.float16)
    made[3].data = w["v"].clone()
    made[4].data = w["k"]
    w["k"].mul_(2)  # in the memory of the parameter, too
    return made


def memory_taken_without_an_operation(w):
    made = [torch.zeros(8, 12) for _ in range(6)]
    for each, name in zip(made, "qkvqkv", strict=True):
        each.copy_(w[name])
    saved = io.BytesIO()
    torch.save(made[0], saved)
    saved.seek(0)
    by_address = (ctypes.c_float * 96).from_address(made[1].data_ptr())
    return [
        torch.load(saved),
        torch.tensor(list(by_address)),
        torch.from_numpy(made[2].numpy().copy()),
        torch.tensor(made[3].tolist()),
        torch.from_dlpack(made[4]).clone(),
        torch.frombuffer(bytearray(bytes(made[5].untyped_storage())), dtype=torch.float32).clone(),
    ]


def elements_read_without_an_operation(w):
    made = [torch.zeros(8, 12) for _ in range(9)]
    for each in made:
        each.copy_(w["q"])
    shown = repr(made[0])
    other = torch.zeros(8, 12).copy_(w["k"])
    return [
        torch.tensor(list(shown.encode())),
        torch.tensor([made[1][0, 0], made[1][1, 1]]),
        torch.as_tensor([made[2][0, 0]]),
        torch.asarray([[made[3][0, 0]], [made[3][1, 1]]]),
        torch.zeros(1).new_tensor(data=[made[4][0, 0], made[4][1, 1]]),
        made[5].apply_(lambda each: each + 1),
        made[6].map_(other, lambda one, two: one + two),
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(made[7])).clone(),
        torch.from_dlpack(torch.to_dlpack(made[8])).clone(),
    ]


def elements_of_deferred_tensors_read_without_an_operation(w):
    w["v"][:2].apply_(lambda each: each + 1)
    return [
        torch.tensor(data=[w["q"][0, 0], w["q"][1, 1]]),
        torch.zeros(1).new_tensor([w["q"][0, 0], w["q"][1, 1]]),
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(w["q"])).clone(),
        torch.zeros(8, 12).map_(w["k"], lambda one, two: one + two),
        torch.zeros(8, 12).copy_(w["v"]),
    ]


def in_a_thread(w):
    made = torch.zeros(8, 12)
    made.copy_(w["q"])
    on_its_own = torch.zeros(8, 12)

    def run():
        made[2:4].copy_(w["k"][:2])
        on_its_own.copy_(w["v"].t().contiguous().t())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return [made, on_its_own]


RECORDED = [
    whole,
    fused,
    rows_of_a_rank,
    columns_of_a_rank,
    one_tensor_that_is_divided,
    columns_of_a_fused_parameter,
    experts,
    fused_experts,
    tied,
    casts,
    a_parameter_written_twice,
    a_parameter_read_in_the_middle,
    data_beside_a_region_that_waits,
    parameters_that_get_other_memory,
    in_a_thread,
    the_device_meta,
]
ALSO_COMPUTED = [
    other_bits,
    shapes,
    scalars,
    computed,
    parameters_of_one_memory,
    a_tensor_changed_in_place,
    in_inference_mode,
    views_of_memory,
    written_through_another_view,
    text,
    deferred_tensors_as_data,
    memory_taken_without_an_operation,
    elements_read_without_an_operation,
    elements_of_deferred_tensors_read_without_an_operation,
]


@pytest.mark.parametrize("loader", RECORDED)
def test_what_loaders_do_is_recorded(folder, loader):
    loads = Loads(folder, loader)
    loads.assert_equal()
    assert not loads.recorder.early_bytes


@pytest.mark.parametrize("loader", ALSO_COMPUTED)
def test_anything_else_reads_the_view(folder, loader):
    Loads(folder, loader).assert_equal()


@pytest.mark.parametrize("loader", [*RECORDED, *ALSO_COMPUTED])
def test_small_tensors_have_data(folder, loader, monkeypatch):
    monkeypatch.setattr(planned_reads, "MOST_EAGER_BYTES", 200)
    Loads(folder, loader).assert_equal()


@pytest.fixture
def _batches_of_one(monkeypatch):
    monkeypatch.setattr(planned_reads, "BATCH_BYTES", 1)


@pytest.mark.usefixtures("_batches_of_one")
@pytest.mark.parametrize("loader", [*RECORDED, *ALSO_COMPUTED])
def test_reads_begin_while_the_recording_runs(folder, loader):
    Loads(folder, loader, takes=OneByOne).assert_equal()


@pytest.fixture
def reader(monkeypatch, _batches_of_one):
    """Reads of other threads: they begin, and wait until they may end."""
    state = SimpleNamespace(has_begun=threading.Event(), may_end=threading.Event(), read=[])
    fill = PlannedCheckpoint.fill

    def waiting(checkpoint, copies, **named):
        if threading.current_thread().name == "streamer-fill":
            state.has_begun.set()
            state.may_end.wait(60)
            state.read.append(sorted(each.deferred.late_stored.name for each in copies))
        fill(checkpoint, copies, **named)

    monkeypatch.setattr(PlannedCheckpoint, "fill", waiting)
    return state


def test_a_loader_goes_on_while_another_thread_reads(folder, reader):
    def loader(w):
        made = torch.zeros(8, 12)
        made[:4].copy_(w["k"][:4])
        if type(w["q"]) is not torch.Tensor:
            assert reader.has_begun.wait(60)
        made[2:6].copy_(w["v"][2:6])  # the later one counts
        reader.may_end.set()
        return [made, made.clone()]

    Loads(folder, loader, takes=OneByOne).assert_equal()
    assert reader.read[0] == ["k"]


@pytest.mark.usefixtures("_batches_of_one")
def test_ranks_that_may_share_read_at_the_end(folder, monkeypatch):
    monkeypatch.setenv("STREAMER_SHARE", "node")
    started = []
    monkeypatch.setattr(Recorder, "fill_ahead", started.append)
    Loads(folder, fused, takes=OneByOne).assert_equal()
    assert not started


def test_a_loader_that_raises_ends_the_read_of_another_thread(folder, reader, monkeypatch):
    made = torch.zeros(8, 12)

    def loader(w):
        made.copy_(w["k"])
        assert w["q"].shape
        assert reader.has_begun.wait(60)
        raise KeyError("no such parameter")

    stop = PlannedCheckpoint.stop
    monkeypatch.setattr(PlannedCheckpoint, "stop", lambda own: stop(own) or reader.may_end.set())
    with pytest.raises(KeyError, match="no such parameter"):
        Loads(folder, loader, takes=OneByOne)
    assert reader.read
    assert not made.any()


def test_a_read_that_begins_while_the_load_fails_gives_nothing(folder, monkeypatch):
    given = []

    class Begun(planned_reads.WholeRead):
        def __enter__(self):
            checkpoint.stop()
            return super().__enter__()

        def __iter__(self):
            given.append(self)
            return super().__iter__()

    recorder, checkpoint = Recorder(), PlannedCheckpoint(Request(uri=str(folder), progress=False))
    kept = dict(checkpoint.tensors(recorder))["q"]
    monkeypatch.setattr(planned_reads, "WholeRead", Begun)
    with pytest.raises(streamer.LoadCancelledError):
        kept.clone().tolist()
    assert not given


def test_one_recorder_is_of_one_load_at_a_time(folder):
    recorder = Recorder()
    made = torch.zeros(8, 12)
    with recorder.around(None):
        given = PlannedCheckpoint(Request(uri=str(folder), progress=False)).tensors(recorder)
        made.copy_(OneByOne(given)["q"])
        with pytest.raises(streamer.UsageError, match="two models at the same time"), recorder.around(None):
            pass
    assert torch.equal(made, tensors()["q"])


def test_an_error_after_a_load_is_not_one_of_the_next(folder):
    recorder, made = Recorder(), torch.zeros(8, 12)

    def filled():
        with recorder.around(None):
            given = dict(PlannedCheckpoint(Request(uri=str(folder), progress=False)).tensors(recorder))
            made.copy_(given["q"])
        return given

    kept = filled()["k"]
    kept.late_stored.checkpoint.stop()
    with pytest.raises(streamer.LoadCancelledError):
        kept.tolist()
    filled()
    assert torch.equal(made, tensors()["q"])


@pytest.mark.parametrize("is_caught", [False, True])
def test_a_read_of_another_thread_that_fails_is_an_error_of_the_load(folder, reader, tmp_path, caplog, is_caught):
    path = tmp_path / "model.safetensors"
    path.write_bytes((folder / "model.safetensors").read_bytes())

    def loader(w):
        made = torch.zeros(8, 12).copy_(w["k"])
        assert w["q"].shape
        assert reader.has_begun.wait(60)
        os.truncate(path, 700)
        reader.may_end.set()
        with contextlib.suppress(Exception) if is_caught else contextlib.nullcontext():
            made.sum()
        return [made]

    with pytest.raises(streamer.StorageError):
        Loads(tmp_path, loader, takes=OneByOne)
    assert "old, new or partly new" in caplog.text


@pytest.mark.usefixtures("_batches_of_one")
def test_without_another_thread_copies_are_made_at_the_end(folder, monkeypatch):
    def start(thread):
        if thread.name == "streamer-fill":
            raise RuntimeError("can't start new thread")
        original(thread)

    original = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    Loads(folder, fused, takes=OneByOne).assert_equal()


def test_torch_is_as_before_when_the_last_load_ends(folder):
    torch.save(torch.zeros(1), io.BytesIO())  # Python keeps the names of slots in a class when it first pickles one
    before = dict(vars(torch.Tensor)), torch.tensor

    def outer(w):
        with contextlib.suppress(KeyError):
            Loads(folder, lambda own: own["none of them"])
        return memory_taken_without_an_operation(w)

    Loads(folder, outer).assert_equal()
    assert (dict(vars(torch.Tensor)), torch.tensor) == before


def test_memory_that_another_thread_takes_is_filled(folder):
    def loader(w):
        made, seen = torch.zeros(8, 12).copy_(w["q"]), []
        thread = threading.Thread(target=lambda: seen.append(torch.tensor(made.tolist())))
        thread.start()
        thread.join()
        return seen

    Loads(folder, loader).assert_equal()


def test_views_of_alike_tensors_are_made_once(folder, monkeypatch):
    made = []
    make = Deferred._new_view_of
    monkeypatch.setattr(Deferred, "_new_view_of", lambda own, *given: made.append(own) or make(own, *given))
    Loads(folder, rows_of_a_rank).assert_equal()
    assert len(made) == 1  # of three tensors


@pytest.mark.parametrize("loader", [*RECORDED, *ALSO_COMPUTED])
def test_long_ranges_are_cut(folder, loader, monkeypatch):
    monkeypatch.setattr(planned_reads, "LEAST_PIECE_BYTES", 16)
    monkeypatch.setattr(planned_reads, "LARGEST_RANGE_BYTES", 40)
    monkeypatch.setattr(tensor_parts, "LEAST_RUN_BYTES", 64)  # columns are cut out of ranges
    Loads(folder, loader).assert_equal()


@pytest.mark.parametrize(
    ("loader", "read", "direct", "staged"),
    [
        (whole, 384, 384, 0),
        (fused, 3 * 384, 3 * 384, 0),
        (rows_of_a_rank, 3 * 192, 3 * 192, 0),
        (columns_of_a_rank, 384 - 24, 192, 0),  # one range, from the first of its bytes to the last
        (one_tensor_that_is_divided, 2 * 384, 2 * 384, 0),
        (tied, 384, 0, 384),  # read once
        (the_device_meta, 0, 0, 0),
    ],
)
def test_only_what_is_kept_is_read(folder, loader, read, direct, staged):
    checkpoint = Loads(folder, loader).checkpoint
    assert (checkpoint.read_bytes, checkpoint.direct_bytes, checkpoint.staged_bytes) == (read, direct, staged)


def test_small_tensors_are_one_read_and_all_others_another(folder, monkeypatch):
    reads = []
    original = planned_reads.WholeRead
    monkeypatch.setattr(planned_reads, "WholeRead", lambda *a, **n: reads.append(original(*a, **n)) or reads[-1])
    Loads(folder, lambda w: fused(w) + columns_of_a_rank(w) + casts(w)).assert_equal()
    assert len(reads) == 2  # of small tensors, and of all others


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_destination_that_wraps_another_tensor(folder, mesh, is_read):
    def loader(w):
        made = [DTensor.from_local(torch.zeros(8, 12), mesh, [Replicate()]) for _ in range(3)]
        made[0].to_local().copy_(w["q"])
        made[1].to_local()[2:6].copy_(w["k"].narrow(0, 1, 4))
        if is_read:
            made[2].copy_(made[0] + made[1])
        return [each.to_local() for each in made]

    Loads(folder, loader).assert_equal()


def test_lists_of_lists(folder):
    def loader(w):
        made = [torch.zeros(8, 12) for _ in range(4)]
        torch._foreach_copy_(made[:2], [w["q"], w["k"]])
        made[2].copy_(w["v"])
        torch._foreach_add_(made[:3], 1)
        made[3][0, :2] = torch.tensor([[w["scalar"], w["q"][0, 0]], [made[2][0, 0], made[0][0, 0]]])[1]
        return made

    Loads(folder, loader).assert_equal()


@pytest.mark.parametrize("is_read", [False, True])
def test_two_storages_over_one_memory(folder, is_read):
    def loader(w):
        memory = bytearray(8 * 12 * 4)
        one, other = (torch.frombuffer(memory, dtype=torch.float32).view(8, 12) for _ in range(2))
        part = torch.frombuffer(memory, dtype=torch.float32, offset=3 * 12 * 4).view(5, 12)
        one.copy_(w["q"])
        other[2:4].copy_(w["k"][:2])
        part[:2].copy_(w["v"][:2])
        one[4, :5].copy_(w["k"][0, :5])
        seen = [other.clone(), part.clone()] if is_read else []
        return [one, *seen]

    Loads(folder, loader).assert_equal()


def test_one_recorder_inside_another(folder):
    def inner(w):
        return [torch.zeros(4, 12).copy_(w["k"][2:6])]

    def loader(w):
        made, twice = torch.zeros(8, 12), torch.zeros(8, 12)
        made.copy_(w["q"])
        loads = Loads(folder, inner)
        loads.assert_equal()
        twice[:4].copy_(loads.found[0])
        twice[4:].copy_(w["v"][:4])
        return [made, twice, *loads.found]

    Loads(folder, loader).assert_equal()


def test_tensors_in_lists_of_modules(folder):
    model = torch.nn.Linear(2, 2)

    def loader(w):
        model.parts, model.named, model.pair = [w["q"], [w["k"][1:]]], {"a": {"b": w["v"]}}, (w["half"],)
        return []

    Loads(folder, loader, model)  # the second load has data
    recorded, checkpoint = Recorder(), PlannedCheckpoint(Request(uri=str(folder), progress=False))
    with recorded.around(model):
        loader(dict(checkpoint.tensors(recorded)))
    stored = tensors()
    kept = [model.parts[0], model.parts[1][0], model.named["a"]["b"], model.pair[0]]
    for each, expected in zip(kept, [stored["q"], stored["k"][1:], stored["v"], stored["half"]], strict=True):
        assert torch.equal(each, expected)
        assert torch.equal(each + 1, expected + 1)
        assert each.numpy(force=True).shape == expected.shape if expected.dtype != torch.bfloat16 else True


@pytest.mark.parametrize(
    "change", [lambda t: t.t_(), lambda t: t.unsqueeze_(0), lambda t: setattr(t, "data", torch.ones(2))]
)
def test_another_shape_in_place_is_refused(folder, change):
    with pytest.raises(NotImplementedError, match=r"gives 'q' another shape .* load with \"deferred\": false"):
        Loads(folder, lambda w: change(w["q"]) or [])


def test_what_modules_keep_has_data_its_attributes_and_is_shared(folder):
    model = torch.nn.ModuleList([torch.nn.Linear(12, 8, bias=False) for _ in range(2)])

    def loader(w):
        if type(w["q"]) is torch.Tensor:
            return []
        kept = torch.nn.Parameter(w["q"], requires_grad=False)
        kept.weight_loader = len
        for each in model:
            each.weight = each.again = kept
            each.register_buffer("scale", w["k"])
            each.plain = w["v"]
        return []

    Loads(folder, loader, model)
    first, second = model
    assert first.weight is second.weight is first.again
    assert first.weight.weight_loader is len
    for kept, name in ((first.weight, "q"), (second.scale, "k"), (first.plain, "v")):
        assert type(kept) in (torch.Tensor, torch.nn.Parameter)
        assert torch.equal(kept, tensors()[name])


def test_interleaved_columns_are_ordered_without_comparing_pairs(folder, monkeypatch):
    compared = []
    monkeypatch.setattr(recorder, "_meet", lambda *pair: compared.append(pair) or True)
    Loads(folder, lambda w: [made := torch.zeros(8, 12), *[made[:, i].copy_(w["q"][:, i]) for i in range(12)]][:1])
    assert not compared


@pytest.mark.usefixtures("_batches_of_one")
@pytest.mark.parametrize("takes", [dict, OneByOne])
def test_a_tensor_that_is_kept_is_read_when_it_is_used(folder, takes):
    kept = []
    loads = Loads(folder, lambda w: kept.append(w["q"][1:3]) or fused(w), takes=takes)
    loads.assert_equal()
    made = torch.zeros(2, 12)
    made.copy_(kept[0])
    assert torch.equal(made, kept[1])
    assert torch.equal(kept[0] + 1, kept[1] + 1)


def test_a_parameter_that_is_deferred_is_read(folder):
    model = torch.nn.Linear(12, 8)

    def loader(w):
        model.weight = torch.nn.Parameter(w["q"], requires_grad=False)
        model.register_buffer("scale", w["half"][1:])
        return []

    Loads(folder, loader, model)  # the second load has data
    recorded, checkpoint = Recorder(), PlannedCheckpoint(Request(uri=str(folder), progress=False))
    with recorded.around(model):
        loader(dict(checkpoint.tensors(recorded)))
    assert type(model.weight) is torch.nn.Parameter
    assert torch.equal(model.weight, tensors()["q"])
    assert type(model.scale) is torch.Tensor
    assert torch.equal(model.scale, tensors()["half"][1:])


def test_a_loader_that_raises_leaves_the_parameters_and_the_mode(folder, caplog):
    made = torch.zeros(8, 12)

    def loader(w):
        made.copy_(w["q"])
        raise KeyError("no such parameter")

    with caplog.at_level(logging.WARNING, "streamer"), pytest.raises(KeyError, match="no such parameter"):
        Loads(folder, loader)
    assert "old, new or partly new" in caplog.text
    assert not made.any()
    Loads(folder, fused).assert_equal()


@pytest.mark.parametrize("shape", [(8, 11), (9, 12), (12,)])
def test_a_shape_that_does_not_fit_raises_as_with_data(folder, shape):
    with pytest.raises(RuntimeError) as of_data:
        torch.zeros(shape).copy_(tensors()["q"])
    with pytest.raises(RuntimeError) as found:
        Loads(folder, lambda w: torch.zeros(shape).copy_(w["q"]))
    assert str(found.value) == str(of_data.value)


def test_a_read_that_fails_is_an_error_of_the_load(folder, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes((folder / "model.safetensors").read_bytes())

    def loader(w):
        path.write_bytes(path.read_bytes()[:-100])
        return fused(w)

    with pytest.raises(streamer.StorageError):
        Loads(tmp_path, loader)


def test_parameters_are_filled_when_the_last_tensor_was_taken(folder):
    recorded, checkpoint = Recorder(), PlannedCheckpoint(Request(uri=str(folder), progress=False))
    made = {name: torch.zeros_like(each) for name, each in tensors().items()}
    with recorded.around(None):
        for name, each in checkpoint.tensors(recorded):
            made[name].copy_(each)
        seen = made["q"].numpy().copy()  # as a kernel that takes an address
    assert (seen == tensors()["q"].numpy()).all()
    assert recorded.early_fills == 0


@pytest.mark.parametrize("use", [torch.Tensor.sum, lambda each: each.zero_() if each.sum() else each])
def test_a_read_that_fails_is_an_error_even_if_the_loader_catches_it(folder, tmp_path, use):
    path = tmp_path / "model.safetensors"
    path.write_bytes((folder / "model.safetensors").read_bytes())

    def loader(w):
        made = torch.zeros(8, 12)
        made.copy_(w["q"])
        path.write_bytes(path.read_bytes()[:-100])
        with contextlib.suppress(Exception):
            use(made)
        return [made]

    with pytest.raises(streamer.StorageError):
        Loads(tmp_path, loader)


class Quantization:
    """Takes a parameter by its address, as kernels do."""

    def __init__(self):
        self.seen = []

    def process_weights_after_loading(self, layer):
        self.seen.append(layer.weight.detach().numpy().copy())


def test_a_layer_is_filled_before_it_is_processed(folder):
    model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(12, 8))
    for each in model:
        each.quant_method = Quantization()

    def loader(w):
        for layer, name in zip(model, "qk", strict=True):
            layer.weight.data.copy_(w[name])
            layer.quant_method.process_weights_after_loading(layer)
        return []

    loads = Loads(folder, loader, model)
    assert loads.recorder.early_fills == 2
    for layer, name in zip(model, "qk", strict=True):
        assert (layer.quant_method.seen[0] == tensors()[name].numpy()).all()
        assert "process_weights_after_loading" not in vars(layer.quant_method)


def test_what_loaders_compute_with_is_named(folder, caplog):
    with caplog.at_level(logging.INFO, "streamer"):
        Loads(folder, lambda w: [w["q"][2:4].abs()])
    assert "1 views were read at once, for loaders that compute: q: aten.abs.default (96.0 B)" in caplog.text
    assert "9 tensors, 96.0 B read, 0.00 B of it straight into parameters" in caplog.text


@given(st.lists(st.sampled_from(["kept", "computed", "both"]), min_size=2, max_size=2), st.integers(1, 8))
def test_the_log_counts_each_read_of_a_loader_that_computes(folder, ways, rows):
    """Bytes straight into parameters are those that no loader has computed with, and each view is one read."""
    kept = [torch.empty(8, 12), torch.empty(8, 12)]

    def loader(w):
        for name, way, place in zip("qk", ways, kept, strict=True):
            if way != "kept":
                [piece.abs() for piece in w[name].split(rows)]
            if way != "computed":
                place.copy_(w[name])
        return []

    loads = Loads(folder, loader)
    assert loads.recorder.early_reads == -(-8 // rows) * sum(way != "kept" for way in ways)
    assert loads.checkpoint.direct_bytes == 384 * sum(way != "computed" for way in ways)


@pytest.mark.parametrize("how", [{"verify": "auto"}, {"verify": "manifest"}])
def test_a_load_that_compares_digests_of_whole_tensors_is_not_deferred(folder, how, tmp_path, caplog):
    path = tmp_path / "model.safetensors"
    path.write_bytes((folder / "model.safetensors").read_bytes())
    streamer.write_manifest(str(path))
    with caplog.at_level(logging.INFO, "streamer"):
        is_deferrable = PlannedCheckpoint(Request(uri=str(path), progress=False, **how)).is_deferrable()
    assert not is_deferrable or how["verify"] == "auto"
    assert is_deferrable or f"{path}: tensors are read whole, as digests are of whole tensors (verify)" in caplog.text


VIEWS = [
    lambda each, n: each.narrow(n % each.ndim, n % each.shape[n % each.ndim], 1 + n % 2) if each.ndim else each,
    lambda each, n: each.transpose(n % each.ndim, -1) if each.ndim else each,
    lambda each, n: each.select(n % each.ndim, n % each.shape[n % each.ndim]) if each.ndim else each,
    lambda each, n: each.unsqueeze(n % (each.ndim + 1)),
    lambda each, n: each[:: 1 + n % 3] if each.ndim else each,
    lambda each, n: each.reshape(-1),
    lambda each, n: each.contiguous(),
    lambda each, n: each.to([torch.float16, torch.float64, torch.bfloat16][n % 3]),
    lambda each, n: each.clone(),
    lambda each, n: each.expand(2, *each.shape),
    lambda each, n: each.chunk(2)[-1] if each.ndim else each,
    lambda each, n: each.squeeze(),
    lambda each, n: each.view(torch.int16),
]


@given(
    chains=st.lists(
        st.tuples(
            st.sampled_from(["q", "k", "half", "experts"]),
            st.lists(st.tuples(st.integers(0, len(VIEWS) - 1), st.integers(0, 7)), max_size=5),
            st.tuples(st.integers(0, 3), st.integers(0, 40), st.sampled_from([torch.float32, torch.bfloat16])),
        ),
        min_size=1,
        max_size=6,
    ),
    is_inference=st.booleans(),
    takes=st.sampled_from([dict, OneByOne]),
)
def test_any_chain_of_views_into_any_region(folder, chains, is_inference, takes):
    def loader(w):
        parameters = [torch.zeros(3000, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
        with torch.inference_mode(is_inference):
            for name, views, (kind, begin, dtype) in chains:
                tensor = w[name]
                for number, n in views:
                    try:
                        tensor = VIEWS[number](tensor, n)
                    except RuntimeError:
                        continue
                if tensor.numel() > 700:
                    continue
                parameter = parameters[dtype is torch.bfloat16]
                region = parameter[begin : begin + tensor.numel() * 2 ** (kind == 1)]
                region = region[::2] if kind == 1 else region
                if kind == 2 and tensor.ndim == 2:
                    region.view(tensor.shape[::-1]).t().copy_(tensor)
                else:
                    region.view(tensor.shape).copy_(tensor)
        return parameters

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned_reads, "BATCH_BYTES", 1)
        Loads(folder, loader, takes=takes).assert_equal()


def test_regions_are_compared_exactly():
    one = torch.zeros(8, 12)

    def meet(first, second):
        return recorder._meet(Elements.of(first), Elements.of(second))

    assert not meet(one[:, :6], one[:, 6:])
    assert meet(one[:, :7], one[:, 6:])
    assert not meet(one[:4], one[4:])
