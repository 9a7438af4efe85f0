"""A server that says strange things about its objects ends a load with an error of the tree, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.control_soak import KINDS, TOTAL_BYTES, ControlSoak
from faults.storages import STORAGES
from make_checkpoint import make_checkpoint

import streamer

LOADS = 40  # of each kind; `python -m faults.control_soak` makes as many as one likes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``bucket/model``."""
    folder = tmp_path_factory.mktemp("control") / "bucket" / "model"
    make_checkpoint(folder, total_bytes=TOTAL_BYTES, shards=2)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_server_says_a_load_ends_equal_or_with_an_error_of_the_tree(kind: str, model: Path) -> None:
    with STORAGES[kind](model) as storage:
        tally = ControlSoak(storage, streamer.load(model, progress=False)).run(LOADS, f"ci-{kind}")
    assert not tally.bad
    assert tally.equal + sum(tally.errors.values()) == LOADS
    assert tally.equal
    assert tally.errors
    assert len(tally.mutations) > 5
