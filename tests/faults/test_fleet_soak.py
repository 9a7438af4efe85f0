"""A short soak of fleets (`python -m faults.soak --nodes 3` is longer): no peer makes a load wrong, or fail."""

from __future__ import annotations

import os

import pytest

from faults.fleet import TROUBLES, BrokenPeer, Fleet, broken_peers
from faults.soak import Soak, made_bucket

LOADS = int(os.environ.get("FLEET_SOAK_LOADS", "60"))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_whatever_its_peers_do_every_load_of_a_fleet_ends_equal_or_with_the_right_class(tmp_path):
    fleet = Fleet(nodes=3, seed=2026)
    with broken_peers():
        tally = Soak(made_bucket(tmp_path), fleet.load).run(LOADS, threads=2, seed=2026)
    assert (tally.wrong, dict(tally.other_errors)) == (0, {})
    assert tally.equal + tally.expected_errors == LOADS
    assert set(BrokenPeer.troubles) == set(TROUBLES)
    assert fleet.peer_bytes > LOADS << 18  # peers were of use, too
