"""An index reads the leading rows it needs and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from streamer.core.checkpoint.lazy_tensor import TensorSlice, narrow
from streamer.core.errors import TensorIndexError
from streamer.core.format.header import TensorEntry
from streamer.core.tensors.frameworks import framework_of

ARRAY = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)
ENTRY = TensorEntry("t", "I16", (4, 5, 6), 1000, 1000 + ARRAY.nbytes)
NUMPY = framework_of("np")


def read(entry):
    begin, end = entry.begin - ENTRY.begin, entry.end - ENTRY.begin
    return np.frombuffer(ARRAY.tobytes()[begin:end], dtype=np.int16).reshape(entry.shape)


INTEGERS = st.integers(-7, 7)
SLICES = st.builds(slice, *[st.none() | INTEGERS] * 2, st.none() | st.integers(-2, 3).filter(bool))
PARTS = st.one_of(INTEGERS, SLICES, st.just(Ellipsis), st.just(None), st.lists(st.integers(0, 3), max_size=3))


@given(st.one_of(PARTS, st.lists(PARTS, max_size=4).map(tuple)))
def test_any_index_gives_what_the_whole_tensor_would_give(key):
    sliced = TensorSlice(ENTRY, read, NUMPY)
    try:
        expected = ARRAY[key]
    except IndexError:
        with pytest.raises(IndexError):
            sliced[key]
    else:
        assert np.array_equal(sliced[key], expected)


@each_row(
    ("key", "rows"),
    [
        (np.s_[1:3], (1, 3)),
        (np.s_[-1], (3, 4)),
        (np.s_[2, 1:], (2, 3)),
        (np.s_[:2, ::2], (0, 2)),
        (np.s_[...], (0, 4)),
        (np.s_[::-1], (0, 4)),
        (np.s_[3:1], (3, 3)),
    ],
)
def test_only_the_rows_of_the_first_dimension_are_read(key, rows):
    row_bytes = 5 * 6 * 2
    entry, _ = narrow(ENTRY, key)
    assert rows[0] * row_bytes <= entry.begin - 1000
    assert entry.end - 1000 <= rows[1] * row_bytes


@each_row(
    "key",
    ["x", b"x", 1.5, {}, {1}, max, (0, "x"), (..., "x"), slice("a"), slice(None, None, "x"), 4, -5, 10**30],
)
def test_what_is_no_index_is_refused_before_anything_is_read_regression(key):
    """Python's, torch's or numpy's own error came out, mostly after the whole tensor was read."""
    with pytest.raises(TensorIndexError, match="cannot be indexed so"):
        TensorSlice(ENTRY, lambda entry: pytest.fail("read"), NUMPY)[key]


@each_row("key", [(0, 0, 0, 0), (..., 7), (..., 10**30), [9], np.array([True] * 9), slice(None, None, 0)])
@each_row("made", [np.array, torch.tensor])
def test_what_the_framework_refuses_is_an_error_of_the_tree_regression(key, made):
    with pytest.raises(TensorIndexError) as caught:
        TensorSlice(ENTRY, lambda entry: made(read(entry)), NUMPY, "s3://bucket/a")[key]
    assert isinstance(caught.value, IndexError)
    assert str(caught.value).startswith("s3://bucket/a: tensor 't'")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("key", [np.int64(1), (np.uint8(1), slice(np.int32(2))), np.array([1, 2]), (np.int64(-1), ...)])
def test_numpys_integers_are_integers_regression(key):
    """A comparison of arrays stumbled over them."""
    assert np.array_equal(TensorSlice(ENTRY, read, NUMPY)[key], ARRAY[key])


def test_leading_integers_narrow_further():
    entry, rest = narrow(ENTRY, np.s_[2, 3, 1:4])
    assert (entry.begin - 1000, entry.shape, rest) == ((2 * 30 + 3 * 6 + 1) * 2, (3,), (slice(None, None, 1),))


def test_a_packed_dimension_is_never_cut():
    packed = TensorEntry("t", "F4", (4, 6), 0, 12)
    assert narrow(packed, np.s_[1])[0].shape == (6,)
    assert narrow(packed, np.s_[1, 2])[0].shape == (6,)


def test_rows_that_share_a_byte_are_never_cut_regression():
    """Five rows of three values of 4 bits: the second begins in the middle of a byte."""
    packed = TensorEntry("t", "F4", (2, 5, 3), 0, 15)
    assert narrow(packed, np.s_[1]) == (packed, (1,))
    packed = TensorEntry("t", "F4", (2, 4, 3), 0, 12)
    entry, rest = narrow(packed, np.s_[1, 2])
    assert (entry.shape, entry.begin, entry.end, rest) == ((4, 3), 6, 12, (2,))


def test_shape_and_dtype_are_known_without_reading():
    sliced = TensorSlice(ENTRY, lambda entry: pytest.fail("read"), NUMPY)
    assert (sliced.get_shape(), sliced.get_dtype()) == ([4, 5, 6], "I16")


def test_a_slice_that_ends_before_it_begins_is_empty():
    entry, rest = narrow(ENTRY, np.s_[3:1])
    assert (entry.begin, entry.shape, rest) == (entry.end, (0, 5, 6), (slice(None, None, 1),))
