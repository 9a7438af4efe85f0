"""How fast sources give, and how much is released to them."""

from __future__ import annotations

import math
import time

import pytest

from streamer.core.peers.flow import Flow, Speeds

STORAGE, SLOW, FAST = 0, 1, 2


def sources_that_gave(*speeds, seconds=2.0):
    """Return a flow for each source that has given so much a second, and their speeds together."""
    flows = [Flow({number}) for number in range(len(speeds))]
    together = Speeds(flows[STORAGE], {str(number): flow for number, flow in enumerate(flows) if number != STORAGE})
    began, steps = time.monotonic(), round(seconds * 50)
    for flow, speed in zip(flows, speeds, strict=True):
        flow.released_bytes = round(speed * seconds)
    for step in range(steps + 1):
        elapsed_s = step * seconds / steps
        together.look(began + elapsed_s, [round(speed * elapsed_s) for speed in speeds], memory_s=1.0)
    return flows, together


def test_the_speed_of_a_source_is_what_it_gave_while_it_was_asked():
    flows, together = sources_that_gave(200_000, 10_000, 30_000)
    assert [flow.speed for flow in flows] == pytest.approx([200_000, 10_000, 30_000], rel=0.05)
    assert together.of_peers == pytest.approx(40_000, rel=0.05)
    assert together.measured_s == pytest.approx(1, abs=0.05)
    idle = [400_000, 20_000, 60_000]  # nothing more was asked for
    together.look(time.monotonic() + 10, idle, memory_s=1.0)
    assert [flow.speed for flow in flows] == pytest.approx([200_000, 10_000, 30_000], rel=0.05)
    assert together.of_peers < 1_000


def test_the_rest_takes_as_long_as_all_sources_need_together():
    flows, together = sources_that_gave(200_000, 10_000, 30_000)
    flows[SLOW].released_bytes += 40_000
    assert together.left_s(200_000) == pytest.approx(1, rel=0.05)
    assert Speeds(Flow({STORAGE}), {}).left_s(1) == math.inf


def test_a_slow_source_gets_only_what_it_gives_before_a_faster_one_could():
    flows, _ = sources_that_gave(200_000, 10_000, 30_000)
    slow = flows[SLOW]
    largest = slow.most_bytes(1.0, 200_000)
    assert largest / 10_000 == pytest.approx(1.0 + largest / 200_000, rel=0.05)
    slow.released_bytes += 15_000
    assert slow.most_bytes(1.0, 200_000) < 0
    assert slow.most_bytes(1.0, 5_000) == math.inf  # the other one is slower
    assert Flow({SLOW}).most_bytes(1.0, 200_000) == math.inf  # nothing is known of it


def test_a_source_gets_what_it_gives_in_the_time_ahead():
    flows, _ = sources_that_gave(200_000, 10_000, 30_000)
    assert flows[FAST].room_bytes(0.5) == pytest.approx(15_000, rel=0.05)
    flows[FAST].released_bytes += 20_000
    assert flows[FAST].room_bytes(0.5) < 0
    assert Flow({FAST}).room_bytes(0.5) == 1  # one run, to begin with
