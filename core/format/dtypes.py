"""The dtypes of the safetensors format, and the size in bytes of a tensor with such a dtype.

Guarantees: a length is exact, and equals the result of the reference implementation with 64-bit unsigned integers.
Refuses: unknown dtypes, tensors whose size overflows those integers, tensors that end inside a byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from streamer.core.errors import FormatError
from streamer.core.quoting import quoted

MAX_UNSIGNED = 2**64 - 1
"""Largest dimension, offset, element count and bit length: the format counts in unsigned 64-bit integers."""

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "BOOL": 8,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "C64": 64,
        "F64": 64,
        "I64": 64,
        "U64": 64,
    }
)
"""Bits of one element of each dtype, by the names in a header."""

TORCH_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "F4": "float4_e2m1fn_x2",
        "F6_E2M3": "float6_e2m3fn",
        "F6_E3M2": "float6_e3m2fn",
        "I16": "int16",
        "U16": "uint16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "U32": "uint32",
        "F32": "float32",
        "C64": "complex64",
        "F64": "float64",
        "I64": "int64",
        "U64": "uint64",
    }
)
"""torch's name of each dtype."""

DTYPES_BY_TORCH_NAME: Mapping[str, str] = MappingProxyType(
    {torch_name: name for name, torch_name in TORCH_DTYPES.items() if DTYPE_BITS[name] >= 8}
)
"""The dtype of each torch name, without those whose elements are shorter than a byte."""

DTYPES_BY_NUMPY_CODE: Mapping[str, str] = MappingProxyType(
    {
        "b1": "BOOL",
        **{f"{kind}{size}": f"{kind.upper()}{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)},
        "f2": "F16",
        "f4": "F32",
        "f8": "F64",
        "c8": "C64",
    }
)
"""The dtype of each of NumPy's type codes, without the character for the byte order."""


def bits_of(dtype: str) -> int:
    """Return the bits of one element.

    Example:
        >>> bits_of("F4")
        4
    """
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise FormatError(f"unknown dtype {quoted(dtype)}", hint=f"The format has {' '.join(DTYPE_BITS)}")
    return bits


def bit_length(shape: Sequence[int], dtype: str) -> int:
    """Return the number of bits of a tensor.

    The product is taken from left to right and must fit at every step, as in the reference: ``[0, 2**63, 4]``
    is an empty tensor, ``[2**63, 4, 0]`` an overflow.

    Example:
        >>> bit_length((2, 3), "BF16")
        96
    """
    product = 1
    for dimension in shape:
        product *= dimension
        if product > MAX_UNSIGNED:
            raise FormatError("shape has more elements than 64 bits can count")
    product *= bits_of(dtype)
    if product > MAX_UNSIGNED:
        raise FormatError("shape and dtype give more bits than 64 bits can count")
    return product


def byte_length(shape: Sequence[int], dtype: str) -> int:
    """Return the number of bytes of a tensor.

    Example:
        >>> byte_length((4,), "F6_E2M3")
        3
    """
    bits = bit_length(shape, dtype)
    if bits % 8:
        raise FormatError(f"{bits} bits of {dtype} end inside a byte")
    return bits // 8
