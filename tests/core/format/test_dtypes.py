"""Lengths of tensors: exact, in whole bytes, and overflowing where 64-bit integers do."""

import pytest
from each_row import each_row

from streamer.core.errors import FormatError
from streamer.core.format.dtypes import DTYPE_BITS, bit_length, bits_of, byte_length

NAMES = ["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2"]
NAMES += ["I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


def test_the_table_holds_every_dtype_of_the_format():
    assert set(DTYPE_BITS) == set(NAMES)


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        DTYPE_BITS["F128"] = 128


@each_row("dtype", [name for name in NAMES if name[1:].isdigit()])
def test_the_number_in_a_name_is_its_size(dtype):
    assert bits_of(dtype) == int(dtype[1:])


@each_row(
    ("shape", "dtype", "size_bytes"),
    [
        ((), "F64", 8),
        ((0,), "F32", 0),
        ((3, 5), "BF16", 30),
        ((2,), "F4", 1),
        ((4,), "F6_E2M3", 3),
        ((8, 2), "F6_E3M2", 12),
        ((3,), "BOOL", 3),
        ((0, 2**63, 4), "U8", 0),
        ((2**60,), "F4", 2**59),
        ((2**61 - 1,), "U8", 2**61 - 1),
    ],
)
def test_byte_length_of(shape, dtype, size_bytes):
    assert byte_length(shape, dtype) == size_bytes
    assert bit_length(shape, dtype) == size_bytes * 8


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 2**64 - 2), "F4"), ((2**62,), "U8"), ((2**61,), "U8"), ((2**63, 4, 0), "U8"), ((2**32,) * 3, "I64")],
)
def test_overflow_is_refused_of(shape, dtype):
    with pytest.raises(FormatError, match="64 bits can count"):
        byte_length(shape, dtype)


@pytest.mark.parametrize(("shape", "dtype"), [((1,), "F4"), ((3,), "F4"), ((1,), "F6_E2M3"), ((), "F6_E3M2")])
def test_a_tensor_that_ends_inside_a_byte_is_refused(shape, dtype):
    with pytest.raises(FormatError, match="inside a byte"):
        byte_length(shape, dtype)


@pytest.mark.parametrize("dtype", ["f32", "F128", "", "U8 ", "F8"])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype):
    with pytest.raises(FormatError, match="unknown dtype") as caught:
        bits_of(dtype)
    assert "BF16" in caught.value.hint
