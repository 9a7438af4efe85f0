"""Which versions tell the bytes of an object apart, and which are the same."""

from __future__ import annotations

import math
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from streamer.core.store import versions
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.versions import is_same_version, settled_at

NOW = 1_800_000_000.5
MONOTONIC = 100.0
TIMES = {
    "nginx": lambda when: f'"{int(when):x}-{84:x}"',
    "milliseconds": lambda when: f'"{84:x}-{int(when) * 1000:x}"',
    "a header's date": lambda when: formatdate(int(when), usegmt=True),
    "a file system's time": lambda when: str(float(int(when))),
    "an ISO date": lambda when: "2027-01-15T08:00:00Z" if int(when) == 1_800_000_000 else str(int(when)),
    "a mounted file": lambda when: f"{int(when)}000000000-{int(when)}000000000-84-7",
}


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch):
    monkeypatch.setattr(versions, "time", SimpleNamespace(time=lambda: NOW, monotonic=lambda: MONOTONIC))


@each_row("written", TIMES.values())
def test_a_time_in_whole_seconds_is_young_for_two_seconds_and_as_long_as_clocks_may_differ(written):
    assert settled_at(written(NOW)) == MONOTONIC + 2
    assert settled_at(written(NOW - 50)) == MONOTONIC + 2
    assert settled_at(written(NOW - 3600)) == 0


@given(age=st.integers(-10, 10), fraction=st.floats(0, 0.999))
def test_with_the_clock_of_the_server_a_time_is_young_for_two_seconds(age, fraction):
    now = 5000 + fraction
    at = settled_at('"any"', changed_at_s=5000 - age, now_s=now)
    assert (at == 0) == (now - (5000 - age) >= 2)
    assert at <= MONOTONIC + 2


@each_row(
    "version",
    [
        *('"9b2cf535f27731c974343645a3985328"', '"9b2cf535f27731c974343645a3985328-6"', "a" * 40),
        *(None, "17", "1800000000000417", "", "nan", str(NOW), f"{NOW * 1e9:.0f}-{NOW * 1e9:.0f}-84-7"),
    ],
)
def test_any_other_version_is_trusted_at_once(version):
    assert settled_at(version) == 0


def test_a_weak_etag_is_trusted_only_by_the_age_of_its_object():
    assert settled_at('W/"1"') == math.inf
    assert settled_at('W/"1"', changed_at_s=10, now_s=20) == 0
    assert settled_at('W/"1"', changed_at_s=19, now_s=20) == MONOTONIC + 1


@given(st.text('aZ0"-/ '), st.text('aZ0"-/ '), st.sampled_from(["", " Sat, 1 Jan"]), st.booleans())
def test_the_comparison_is_weak_and_symmetric(one, other, when, is_weak):
    etag = f'"{one}"'
    assert is_same_version(f"W/{etag}{when}", etag if is_weak else f"W/{etag}{when}")
    assert is_same_version(one, other) == is_same_version(other, one)
    assert is_same_version(f'"{one}"', f'"{other}"') == (one == other)


def test_a_plugin_need_not_know_of_all_this():
    info = ObjectInfo("a", "x://a", 1, f'"{int(NOW):x}-1"')
    assert not info.is_settled
    assert not info.is_weak
    assert ObjectInfo("a", "x://a", 1, '"1"').is_settled
    assert ObjectInfo("a", "x://a", 1, 'W/"1"').is_weak
    assert info.is_same_as(ObjectInfo("a", "x://a", 1, f'W/"{int(NOW):x}-1"'))
    assert not info.is_same_as(ObjectInfo("a", "x://a", 2, info.version))
    assert not info.is_same_as(None)
