"""The model of a fleet keeps its laws, so that the figures of the page follow from its limits."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row

MODEL = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/modelled_fleet.py"))
Fleet, run, WAYS = MODEL["Fleet"], MODEL["outcome_of"], MODEL["WAYS"]
FLEET = Fleet(nodes=8, blocks=200)
LOST = replace(FLEET, lost_nodes=1, lost_after_s=7)
EVENTS = {
    "nothing": FLEET,
    "a lost node": LOST,
    "nodes lost one after another": replace(FLEET, nodes=20, lost_nodes=5, lost_after_s=3),
    "a slow node": replace(FLEET, slow_nodes=1),
    "two zones": replace(FLEET, zones=2, between_zones=3e9),
    "two zones and lost nodes": replace(FLEET, nodes=20, zones=2, lost_nodes=5, lost_after_s=2),
    "one node": replace(FLEET, nodes=1),
    "a late start, and a measured store": replace(LOST, start_s=0.5, asking_s=1, probed=1 / 4, is_side_by_side=True),
}


@each_row("event", [*EVENTS])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_that_was_sent_has_arrived_or_was_lost_with_a_node(event: str, way: str) -> None:
    fleet = EVENTS[event]
    found, copies = run(fleet, way), fleet.readers if way == "everyone" else 1
    assert found.received_bytes == pytest.approx((fleet.nodes - fleet.lost_nodes) * copies * fleet.size_bytes)
    assert found.store_bytes + found.peer_bytes == pytest.approx(found.received_bytes + found.wasted_bytes)
    assert found.received_from_store <= min(found.received_bytes, found.store_bytes)
    assert 0 < found.median_s <= found.seconds


@pytest.mark.parametrize("nodes", [1, 8, 50])
def test_without_peers_the_store_sends_everything_to_each_reader(nodes: int) -> None:
    fleet = replace(FLEET, nodes=nodes)
    assert run(fleet, "everyone").store_bytes == pytest.approx(nodes * fleet.readers * fleet.size_bytes)
    assert run(fleet, "once per node").store_bytes == pytest.approx(nodes * fleet.size_bytes)


@pytest.mark.parametrize("nodes", [2, 8, 100])
def test_with_peers_each_block_leaves_the_store_once(nodes: int) -> None:
    assert run(replace(FLEET, nodes=nodes), "peers").store_bytes <= 1.05 * FLEET.size_bytes


@pytest.mark.parametrize("lost_after_s", [0.5, 3, 7, 12])
def test_what_a_lost_node_was_to_fetch_is_fetched_once_more_at_most(lost_after_s: float) -> None:
    found = run(replace(LOST, lost_after_s=lost_after_s), "peers")
    assert found.store_bytes <= (1 + 1 / LOST.nodes + 0.05) * LOST.size_bytes


def test_nothing_is_faster_than_its_narrowest_limit() -> None:
    for way in WAYS:
        for fleet in (FLEET, replace(FLEET, store=2.5e9), replace(FLEET, network=1e9), replace(FLEET, together=5e9)):
            found = run(fleet, way)
            sent = found.store_bytes + found.peer_bytes
            limits = {fleet.store: found.store_bytes, fleet.network: found.received_bytes / 8, fleet.together: sent}
            assert found.seconds >= max(size / speed for speed, size in limits.items())


def test_bytes_cross_to_another_zone_once() -> None:
    found = run(replace(FLEET, nodes=20, zones=2), "peers")
    assert found.between_zones_bytes == pytest.approx(FLEET.size_bytes)


def test_one_slow_node_does_not_make_half_of_the_fleet_slow() -> None:
    fleet = replace(FLEET, nodes=50)
    assert run(replace(fleet, slow_nodes=1), "peers").median_s < 1.2 * run(fleet, "peers").median_s


def test_the_same_fleet_gives_the_same_figures() -> None:
    assert run(LOST, "peers") == run(LOST, "peers")
    assert run(LOST, "peers", seed=1) != run(LOST, "peers")


def test_a_zone_without_a_node_is_refused() -> None:
    with pytest.raises(ValueError, match="one node of each zone"):
        run(replace(FLEET, zones=2, lost_nodes=7), "peers")


def test_one_more_node_takes_nothing_from_the_store_if_the_others_have_it() -> None:
    found = run(replace(FLEET, warm_nodes=7), "peers")
    assert (found.store_bytes, found.received_bytes) == (0, pytest.approx(FLEET.size_bytes))
    assert found.seconds <= 1.1 * FLEET.size_bytes / FLEET.network


def test_a_load_takes_longer_by_its_start() -> None:
    one = replace(FLEET, nodes=1)
    assert run(replace(one, start_s=3), "peers").seconds == pytest.approx(run(one, "peers").seconds + 3)


def test_nodes_that_seldom_ask_hear_late_of_the_last_blocks() -> None:
    side_by_side = replace(FLEET, is_side_by_side=True)
    seldom = run(replace(side_by_side, asking_s=8), "peers")
    assert run(side_by_side, "peers").seconds + 1 < seldom.seconds < run(side_by_side, "peers").seconds + 8


def test_a_node_that_measures_the_store_reads_that_part_and_no_more() -> None:
    joined = run(replace(FLEET, warm_nodes=7, probed=1 / 32), "peers")
    assert joined.received_from_store == pytest.approx(FLEET.size_bytes * 7 / 200)  # of 200 blocks, a 32nd rounded up
    assert (
        run(replace(FLEET, probed=1 / 32), "peers").store_bytes <= 1.05 * FLEET.size_bytes
    )  # its part is more than that


def test_others_have_what_a_lost_node_had_read_if_they_read_side_by_side() -> None:
    lost = replace(LOST, store=2.5e9, lost_after_s=28)
    one_by_one, side_by_side = run(lost, "peers"), run(replace(lost, is_side_by_side=True), "peers")
    assert side_by_side.store_bytes < one_by_one.store_bytes
