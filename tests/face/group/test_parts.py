"""Which bytes the ranks of a group keep, read and send: whatever they ask for, each gets its bytes, each read once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.core.checkpoint.catalog import ShardTensor
from streamer.core.checkpoint.tensor_parts import Slice, cut_out
from streamer.core.format.header import TensorEntry
from streamer.core.group.assembly import Part, Runs, bytes_before, clipped, part_of, size_of
from streamer.core.group.windows import LEAST_OWN_BYTES, STRIPE_STEP_BYTES, group_reads, windows_of


def offsets(part: Part) -> NDArray[Any]:
    """List the offset of every byte."""
    runs = [(each.first + each.stride * np.arange(each.number))[:, None] + np.arange(each.length) for each in part]
    return np.concatenate([each.ravel() for each in runs]) if runs else np.empty(0, np.int64)


@st.composite
def boxes(draw: Any) -> tuple[tuple[int, ...], list[slice]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    box = []
    for size in shape:
        first = draw(st.integers(0, size - 1))
        box.append(slice(first, draw(st.integers(first, size))))
    return shape, box


@given(boxes(), st.sampled_from([("U8", 1), ("BF16", 2), ("F32", 4)]))
@settings(max_examples=150, deadline=None)
def test_a_part_is_the_bytes_of_its_box_in_their_order(of: Any, kind: tuple[str, int]) -> None:
    (shape, box), (dtype, width) = of, kind
    size = prod(shape) * width
    numbers = np.arange(size).reshape(*shape, width)
    entry = TensorEntry("t", dtype, shape, 100, 100 + size)
    part = part_of(ShardTensor(0, *cut_out(entry, box)), 100)
    expected = numbers[tuple(box)].ravel().tolist()
    assert offsets(part).tolist() == expected
    assert size_of(part) == len(expected)
    for position in range(0, size + 1, 3):
        assert bytes_before(part, position) == sum(each < position for each in expected)
        inside = [each for each in expected if position <= each < position + 7]
        assert offsets(tuple(clipped(part, position, position + 7))).tolist() == inside


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_blocks_of_a_joint_tensor_are_one_pattern(dim: int) -> None:
    entry = TensorEntry("t", "F32", (8, 8, 8), 0, 8 * 8 * 8 * 4)
    part = part_of(Slice(dim, 1, 2, blocks=2).of(ShardTensor(0, entry)), 0)
    assert len(part) == 1
    numbers = np.arange(8 * 8 * 8 * 4).reshape(8, 8, 32)
    in_bytes = [
        (slice(None),) * dim + (slice(at * (4 if dim == 2 else 1), (at + 2) * (4 if dim == 2 else 1)),) for at in (2, 6)
    ]
    expected = np.concatenate([numbers[each] for each in in_bytes], axis=dim)
    assert offsets(part).tolist() == expected.ravel().tolist()


def test_values_of_four_bits_are_cut_in_whole_bytes() -> None:
    entry = TensorEntry("t", "F4", (4, 8), 0, 16)
    assert part_of(Slice(1, 1, 2).of(ShardTensor(0, entry)), 0) == (Runs(2, 2, 4, 4),)


PARTS = st.one_of(
    st.just(()),
    st.builds(lambda first, size: (Runs(first, size, size, 1),), st.integers(0, 10**6), st.integers(1, 10**6)),
    st.builds(
        lambda first, length, far, count: (Runs(first, length, length + far, count),),
        st.integers(0, 999),
        st.integers(1, 999),
        st.integers(1, 999),
        st.integers(2, 900),
    ),
)


@given(
    st.integers(1, 4).flatmap(
        lambda ranks: st.lists(st.lists(PARTS, min_size=3, max_size=3), min_size=ranks, max_size=ranks)
    ),
    st.integers(50_000, 2 * 10**6),
)
@settings(max_examples=40, deadline=None)
def test_every_wanted_byte_is_read_by_one_rank_and_reaches_all_that_want_it(parts: Any, window_bytes: int) -> None:
    ranks, size = len(parts), 2 * 10**6
    tensors = [ShardTensor(0, TensorEntry(str(n), "U8", (size,), n * size, (n + 1) * size)) for n in range(3)]
    reads = [group_reads(rank, parts, tensors, window_bytes) for rank in range(ranks)]
    count = np.zeros((3, size), np.uint8)
    got = np.zeros((ranks, 3, size), np.uint8)
    for rank, each in enumerate(reads):
        for tensor, begin, end in (read.piece for window in each.own for read in window):
            count[tensor, begin:end] += 1
        for window in each.own:
            for read in window:
                tensor, begin, end = read.piece
                for other in range(ranks) if read.is_shared else [rank]:
                    for runs in clipped(parts[other][tensor], begin, end):
                        got[other, tensor, offsets((runs,))] += 1
    assert count.max() <= 1
    for rank in range(ranks):
        for tensor in range(3):
            assert got[rank, tensor].sum() == size_of(parts[rank][tensor])
            assert (got[rank, tensor][offsets(parts[rank][tensor])] == 1).all()
    for window in range(len(reads[0].windows)):
        sizes = np.array([reads[0].sizes_to_send(window, rank) for rank in range(ranks)])
        assert sizes.sum() <= ranks * reads[0].windows[window].shared_bytes
    assert [tensor for window in reads[0].windows for tensor in window.complete] == [0, 1, 2]


def test_long_rows_of_one_rank_are_its_own_and_short_ones_are_exchanged() -> None:
    long, short = 2 * LEAST_OWN_BYTES, LEAST_OWN_BYTES // 2
    parts = [[(Runs(rank * size, size, size, 1),) for size in (long, short)] for rank in range(2)]
    (window,) = windows_of(parts, 1 << 30)
    assert [(owner, piece.begin, piece.end) for owner, piece in window.own] == [(0, 0, long), (1, long, 2 * long)]
    assert [(piece.tensor, piece.begin, piece.end) for piece in window.shared] == [(1, 0, 2 * short)]


def test_stripes_are_equal_and_none_is_a_tiny_request() -> None:
    size = 10 * STRIPE_STEP_BYTES + 5
    whole = [[(Runs(0, size, size, 1),)]] * 4
    (window,) = windows_of(whole, 1 << 30)
    stripes = [[piece.end - piece.begin for piece in window.stripe(rank, 4)] for rank in range(4)]
    assert stripes == [[3 * STRIPE_STEP_BYTES]] * 3 + [[STRIPE_STEP_BYTES + 5]]
