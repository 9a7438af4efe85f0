"""Which device a name goes to, and how a plan keeps devices apart: pure values."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.errors import OptionError
from streamer.core.tensors.devices import Placement


@each_row(
    ("name", "device"),
    [
        ("model.layers.1.mlp.weight", 1),
        ("model.layers.1", 1),
        ("model.layers.10.mlp.weight", "cpu"),  # a prefix ends at a dot
        ("model.layers.1.mlp.bias", "cuda:7"),  # the longest key counts
        ("lm_head.weight", "cpu"),
        ("", "cpu"),
    ],
)
def test_the_longest_key_that_is_a_whole_part_of_the_name_decides(name: str, device: object) -> None:
    devices = {"": "cpu", "model.layers.1": 1, "model.layers.1.mlp.bias": "cuda:7"}
    assert Placement(devices).of(name) == device


def test_one_device_is_for_all_names() -> None:
    assert Placement("cuda").of("anything") == "cuda"
    assert Placement("cuda").devices == ["cuda"]


def test_a_name_that_no_key_matches_is_refused() -> None:
    with pytest.raises(OptionError, match="none for tensor 'head'"):
        Placement({"model": 0}).of("head")


@pytest.mark.parametrize("wrong", [{}, {1: "cpu"}])
def test_a_target_that_is_no_mapping_is_refused(wrong: dict[object, object]) -> None:
    with pytest.raises(OptionError):
        Placement(wrong)


def test_a_span_holds_items_of_one_device_only() -> None:
    items = [Item(0, 0, 10), Item(0, 10, 20, 0, 1), Item(0, 20, 30, 0, 1), Item(0, 30, 40, 0, 2), Item(0, 40, 50)]
    spans = plan_reads(items, 100).spans
    assert [tuple(spans[row : row + 5]) for row in range(0, len(spans), 5)] == [
        (0, 0, 10, 0, 1),
        (0, 10, 30, 1, 2),
        (0, 30, 40, 3, 1),
        (0, 40, 50, 4, 1),
    ]
