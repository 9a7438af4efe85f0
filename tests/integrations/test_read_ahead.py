"""One stream serves tensors that are asked for one by one, in any order, by several threads, in bounded memory."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from comparison import assert_same
from fsspec.implementations.memory import MemoryFileSystem
from safetensors import safe_open
from safetensors.torch import save

import streamer
from streamer._checkpoint_headers import open_checkpoint
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.format.header import TensorEntry
from streamer.core.request.request import Request
from streamer.core.tensors.frameworks import framework_of
from streamer.integrations import read_ahead
from streamer.integrations.folder_weights import FolderWeights, write_weight_files
from streamer.integrations.library_calls import Location
from streamer.integrations.read_ahead import ReadAhead, in_order_of_names

SMALL = 64 << 10


@pytest.fixture
def plan_of(checkpoint):
    """Makes plans of all tensors, with a memory limit; they are stopped afterwards."""
    plans = []

    def make(memory_limit_bytes=None, verify=None):
        options = streamer.Options(memory_limit_bytes=memory_limit_bytes, block_bytes=SMALL)
        opened = open_checkpoint(Request(uri=checkpoint, options=options, verify=verify))
        plans.append(ReadAhead(opened, framework_of("pt", "cpu")))
        for each in opened.catalog.tensors.values():
            plans[-1].expect(each)
        return plans[-1]

    yield make
    for plan in plans:
        plan.stop()


def ordered(reference):
    return [each.entry.name for each in in_order_of_names([ShardTensor(0, entry(name)) for name in reference], 1)]


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def entry(name, begin=0):
    return TensorEntry(name, "U8", (1,), begin, begin + 1)


def test_every_tensor_is_taken_by_four_threads_in_the_order_of_names(plan_of, reference):
    plan = plan_of()
    with ThreadPoolExecutor(4) as threads:
        taken = dict(zip(ordered(reference), threads.map(plan.take, ordered(reference)), strict=True))
    assert_same(taken, reference)


def test_all_tensors_come_from_one_stream(plan_of, reference, monkeypatch):
    streams = []

    def noted(checkpoint, wanted, *others, **named):
        streams.append(len(wanted))
        return streamer.Stream(checkpoint, wanted, *others, **named)

    monkeypatch.setattr(read_ahead, "Stream", noted)
    plan = plan_of()
    assert not streams
    for name in ordered(reference):
        plan.take(name)
    assert streams == [len(reference)]


@pytest.mark.parametrize("limit", [1, 1 << 20, None])
def test_the_reverse_order_ends_with_every_tensor_or_a_read_of_its_own(plan_of, reference, limit):
    plan = plan_of(limit)
    for name in reversed(ordered(reference)):
        tensor = plan.take(name)
        assert tensor is None or torch.equal(bytes_of(tensor), bytes_of(reference[name]))


def test_a_tensor_that_is_never_taken_blocks_no_member(plan_of, reference):
    plan = plan_of(1 << 20)
    every_third = ordered(reference)[::3]
    taken = {name: plan.take(name) for name in every_third}
    assert_same(taken, {name: reference[name] for name in every_third})


def test_what_arrived_and_is_not_taken_is_bounded(plan_of, reference, monkeypatch):
    limit = 1 << 20
    plan = plan_of(limit)
    alive = weakref.WeakSet()
    own = streamer.Stream.__next__

    def noted(stream):
        name, tensor = own(stream)
        alive.add(tensor)
        return name, tensor

    monkeypatch.setattr(streamer.Stream, "__next__", noted)
    largest = max(tensor.nbytes for tensor in reference.values())
    for name in ordered(reference)[::5]:
        plan.take(name)
        gc.collect()
        assert sum(tensor.nbytes for tensor in alive) <= limit + largest


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_little_memory_leaves_nothing_to_other_reads(plan_of, reference, limit):
    plan = plan_of(limit)
    assert_same({name: plan.take(name) for name in ordered(reference)}, reference)


def test_a_taken_tensor_has_no_other_reference(plan_of, reference):
    plan = plan_of()
    name = ordered(reference)[0]
    tensor = weakref.ref(plan.take(name))
    gc.collect()
    assert tensor() is None
    assert plan.take(name) is None  # so a second taker reads it himself


def test_a_tensor_that_was_not_expected_is_read_on_its_own(plan_of, reference):
    plan = plan_of()
    plan.forget(reference)
    assert plan.take(next(iter(reference))) is None


def test_after_a_stop_every_tensor_is_read_on_its_own(plan_of, reference):
    plan = plan_of(1)
    first, second, *_ = ordered(reference)
    assert plan.take(first) is not None
    plan.stop()
    assert plan.take(second) is None


def test_a_stop_releases_those_that_wait(plan_of, reference, monkeypatch):
    plan = plan_of()
    is_waiting, may_go = threading.Event(), threading.Event()

    def stuck(stream):
        is_waiting.set()
        assert may_go.wait(30)
        raise streamer.LoadCancelledError("closed")

    monkeypatch.setattr(streamer.Stream, "__next__", stuck)
    first, second, *_ = ordered(reference)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(plan.take, name) for name in (first, second)]
        assert is_waiting.wait(30)
        plan.stop()
        may_go.set()
        assert [each.result(30) for each in waiting] == [None, None]


def test_a_failure_is_raised_to_every_taker(plan_of, reference, monkeypatch):
    def fail(stream):
        raise streamer.TruncatedError("cut")

    monkeypatch.setattr(streamer.Stream, "__next__", fail)
    plan = plan_of()
    for name in ordered(reference)[:3]:
        with pytest.raises(streamer.TruncatedError, match="cut"):
            plan.take(name)


def test_whole_objects_are_verified_though_they_are_read_in_their_order(plan_of, reference):
    plan = plan_of(1 << 20, "auto")
    assert_same({name: plan.take(name) for name in ordered(reference)}, reference)


def test_tensors_wanted_close_to_each_other_are_read_as_they_lie():
    tensors = [ShardTensor(0, entry(f"{i}.w", begin)) for begin, i in enumerate((10, 3, 2, 1))]
    assert [each.entry.name for each in in_order_of_names(tensors, 1)] == ["1.w", "2.w", "3.w", "10.w"]
    assert [each.entry.name for each in in_order_of_names(tensors, 3)] == ["3.w", "2.w", "1.w", "10.w"]


def test_each_file_that_a_library_opens_has_its_own_metadata_regression(tmp_path):
    """All had those of the whole checkpoint; torchao's, for instance, describe the tensors of one file."""
    notes = {f"model-0000{number}-of-00002.safetensors": {"names": f"t{number}"} for number in (1, 2)}
    for name, own in notes.items():
        MemoryFileSystem().pipe(f"/notes/{name}", save({own["names"]: torch.ones(2)}, own))
    weights = FolderWeights(str(tmp_path), Location(uri="memory://notes"))
    (tmp_path / "written").mkdir()
    write_weight_files(weights._checkpoint, str(tmp_path / "written"), notes)
    for name, own in notes.items():
        assert weights.opened(str(tmp_path / name)).metadata() == own
        with safe_open(tmp_path / "written" / name, "pt") as written:
            assert written.metadata() == own
