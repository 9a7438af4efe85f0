"""The parts of tensors that a rank takes of the first layer are read ahead of all others, and nothing else is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

import streamer
from streamer._checkpoint_headers import open_checkpoint
from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.lazy_tensor import narrow
from streamer.core.request.request import Request
from streamer.core.tensors.frameworks import framework_of
from streamer.integrations import read_ahead
from streamer.integrations.parts_ahead import LEARNED_AFTER, PartsAhead
from streamer.integrations.read_ahead import ReadAhead

LAYERS = 12
KINDS = {"norm.weight": (4,), "mlp.up.weight": (8, 4), "mlp.down.weight": (4, 8), "attn.q.weight": (8, 4)}
WHOLE, SECOND_HALF, FIRST_HALF = ..., slice(4, 8), slice(0, 4)
OF_A_RANK = {"norm.weight": WHOLE, "mlp.up.weight": SECOND_HALF, "mlp.down.weight": WHOLE, "attn.q.weight": FIRST_HALF}


@pytest.fixture
def reference():
    named = {f"layers.{layer}.{kind}": shape for layer in range(LAYERS) for kind, shape in KINDS.items()}
    named["embed.weight"] = (16, 4)
    return {name: torch.rand(shape) for name, shape in sorted(named.items())}


@pytest.fixture
def opened(reference, tmp_path):
    save_file(reference, tmp_path / "model.safetensors")
    return open_checkpoint(Request(uri=tmp_path, options=streamer.Options()))


@pytest.fixture
def streams(monkeypatch):
    """The tensors of each stream that a plan opens."""
    opened_streams = []

    def noted(checkpoint, wanted, *others, **named):
        opened_streams.append(wanted)
        return streamer.Stream(checkpoint, wanted, *others, **named)

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return opened_streams


@pytest.fixture
def plan(opened):
    plan = PartsAhead(ReadAhead(opened, framework_of("pt", "cpu")))
    for each in opened.catalog.tensors.values():
        plan.expect(each)
    yield plan
    plan.stop()


def in_layers(first=0, kinds=OF_A_RANK):
    return [(f"layers.{layer}.{kind}", rows) for layer in range(first, LAYERS) for kind, rows in kinds.items()]


def rows_of(opened, name, rows):
    whole = opened.catalog.tensors[name]
    return ShardTensor(whole.shard, narrow(whole.entry, rows)[0])


def test_the_rows_of_later_layers_come_from_one_stream(plan, opened, reference, streams):
    taken = {name: plan.take_part(rows_of(opened, name, rows)) for name, rows in in_layers()}
    expected = {name: reference[name][rows] for name, rows in in_layers()}
    alone = [name for name, tensor in taken.items() if tensor is None]
    assert alone == list(taken)[: len(KINDS) + LEARNED_AFTER]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in taken.items() if name not in alone)
    assert [{each.entry.name for each in wanted} for wanted in streams] == [set(taken) - set(alone)]
    assert sum(each.entry.end - each.entry.begin for each in streams[0]) == sum(
        expected[name].nbytes for name in set(taken) - set(alone)
    )


def test_four_threads_take_them_too(plan, opened, reference):
    with ThreadPoolExecutor(4) as threads:
        asked = in_layers()
        taken = list(threads.map(lambda pair: plan.take_part(rows_of(opened, *pair)), asked))
    assert sum(tensor is not None for tensor in taken) > len(asked) / 2
    for (name, rows), tensor in zip(asked, taken, strict=True):
        assert tensor is None or torch.equal(tensor, reference[name][rows])


def test_a_layer_that_differs_is_read_on_its_own(plan, opened, reference):
    """Wrongly learned: of layers from the sixth on, this rank takes the other half."""
    for name, rows in in_layers():
        is_late = int(name.split(".")[1]) >= 6 and rows is SECOND_HALF
        tensor = plan.take_part(rows_of(opened, name, FIRST_HALF if is_late else rows))
        assert tensor is None or not is_late
        assert tensor is None or torch.equal(tensor, reference[name][rows])


def test_a_kind_with_two_selected_parts_is_not_planned(plan, opened, streams):
    for name, rows in in_layers():
        plan.take_part(rows_of(opened, name, rows))
        if "attn" in name:
            assert plan.take_part(rows_of(opened, name, slice(6, 8))) is None
    assert streams
    assert not any("attn" in each.entry.name for each in streams[0])


def test_experts_that_the_first_layer_did_not_take_are_not_read(tmp_path, streams):
    names = [f"layers.{layer}.experts.{expert}.w" for layer in range(LAYERS) for expert in range(4)]
    save_file({name: torch.rand(4, 4) for name in names}, tmp_path / "model.safetensors")
    opened = open_checkpoint(Request(uri=tmp_path, options=streamer.Options()))
    plan = PartsAhead(ReadAhead(opened, framework_of("pt", "cpu")))
    for each in opened.catalog.tensors.values():
        plan.expect(each)
    for name in names:
        if name.split(".")[3] in "12":
            plan.take_part(opened.catalog.tensors[name])
    assert streams
    assert {each.entry.name.split(".")[3] for each in streams[0]} == {"1", "2"}
    plan.stop()


def test_without_layers_everything_is_read_on_its_own(plan, opened, streams):
    assert plan.take_part(rows_of(opened, "embed.weight", slice(0, 8))) is None
    assert not streams


def test_what_is_forgotten_is_not_planned(plan, opened, streams):
    plan.forget([f"layers.11.{kind}" for kind in KINDS])
    for name, rows in in_layers():
        plan.take_part(rows_of(opened, name, rows))
    assert not any(".11." in each.entry.name for each in streams[0])


def test_after_a_stop_every_part_is_read_on_its_own(plan, opened):
    asked = [rows_of(opened, name, rows) for name, rows in in_layers()]
    half = len(asked) // 2
    assert [plan.take_part(each) for each in asked[:half]][-1] is not None
    plan.stop()
    assert all(plan.take_part(each) is None for each in asked[half:])
