"""How a pull cuts files into pieces, and how far it reads ahead: little on a slow line, much on a fast one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from streamer._pull.transfer import FIRST_BYTES, LARGEST_BYTES, SMALLEST_BYTES, Ahead, cut

MIB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 40 * MIB), st.integers(0, 40 * MIB)), max_size=8))
def test_pieces_hold_every_missing_byte_once_and_in_order(missing: list[tuple[int, int]]) -> None:
    pieces = cut(missing)
    for number, (begin, end) in enumerate(missing):
        own = [each for each in pieces if each.source == number]
        assert sum(each.end - each.begin for each in own) == max(end - begin, 0)
        assert all(one.end == other.begin for one, other in pairwise(own))
        assert not own or (own[0].begin, own[-1].end) == (begin, end)
    assert [each.source for each in pieces] == sorted(each.source for each in pieces)


def test_a_piece_is_an_eighth_of_what_is_before_it_at_most() -> None:
    before = 0
    for each in cut([(123_456, 100 * MIB), (0, 100 * MIB)]):
        assert each.end - each.begin <= max(SMALLEST_BYTES, before // 8)
        before += each.end - each.begin


def test_pieces_grow_to_the_largest_block_and_end_where_blocks_do() -> None:
    pieces = cut([(0, 1 << 30)])
    assert pieces[0].end == SMALLEST_BYTES
    assert max(each.end - each.begin for each in pieces) == LARGEST_BYTES
    assert len(pieces) < (1 << 30) / LARGEST_BYTES + 100
    assert all(each.end % LARGEST_BYTES == 0 for each in pieces if each.end > 128 * MIB)


def run(bytes_per_s: float, wait_s: float, answers: int) -> list[int]:
    """Return how much was under way, if all of it arrives before more is asked for."""
    now, ahead, seen = 0.0, Ahead(256 * MIB, 0.0), []
    for _ in range(answers):
        seen.append(ahead.bytes)
        now += wait_s + ahead.bytes / bytes_per_s
        ahead.count(ahead.bytes, now)
    return seen


@each_row("wait_s", [0.0, 0.03])
@each_row("bytes_per_s", [2e4, 1e6, 2e7])
def test_on_a_slow_line_about_a_second_is_under_way(bytes_per_s: float, wait_s: float) -> None:
    assert run(bytes_per_s, wait_s, 30)[-1] == pytest.approx(max(bytes_per_s, FIRST_BYTES), rel=0.05)
    assert max(run(bytes_per_s, wait_s, 30)) <= max(bytes_per_s, FIRST_BYTES)


def test_on_a_fast_line_all_may_be_under_way_after_a_few_answers() -> None:
    assert run(2e9, 0.0002, 5)[-1] == 256 * MIB
    assert run(2e9, 0.03, 6)[-1] == 256 * MIB


def test_a_line_that_becomes_slow_has_less_under_way() -> None:
    ahead = Ahead(256 * MIB, 0.0)
    now = 0.0
    while ahead.bytes < 256 * MIB:
        now += 0.01
        ahead.count(ahead.bytes, now)
    assert ahead.count(256 * MIB, now + 256)
    assert ahead.bytes == MIB


def test_bytes_are_counted_until_all_that_was_under_way_is_there() -> None:
    ahead = Ahead(256 * MIB, 0.0)
    assert not ahead.count(FIRST_BYTES - 1, 0.1)
    assert ahead.count(1, 0.1)


def test_no_more_is_under_way_than_the_memory_limit() -> None:
    ahead = Ahead(1000, 0.0)
    assert ahead.bytes == 1000
    assert not ahead.count(1000, 1e-9)
    assert ahead.bytes == 1000
