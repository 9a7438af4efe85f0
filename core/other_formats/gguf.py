"""GGUF, the format of llama.cpp.

Plain tensors (F32, F16, BF16, F64, I8 to I64) have their dtype. A quantised tensor is loaded as its blocks: its dtype
is U8, and its last dimension is the bytes of a row of blocks, as in the library ``gguf``. The metadata maps the names
of these tensors to their types, under `TYPES_KEY`. All other metadata of the file keep their keys: texts are unchanged,
numbers and arrays become JSON, and `KINDS_KEY` maps the keys to the types in the file. So nothing of the file is lost.

Refuses with FormatError: version 1, big-endian files, lengths and offsets that do not fit the file, tensors that
overlap, arrays that are nested too deep, and parts of a split model without the other parts.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from streamer.core.errors import FormatError, TruncatedError
from streamer.core.format.dtypes import bits_of
from streamer.core.format.shard_names import series_of
from streamer.core.other_formats.interface import CheckpointFile, CheckpointIndex, Format, TensorPlace, about, not_of
from streamer.core.quoting import names_text, quoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import hookimpl

TYPES_KEY, KINDS_KEY = "streamer.ggml_types", "streamer.gguf_kinds"

_PLAIN = {0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}
# Number, name, elements of a block, bytes of a block.
_BLOCKS = """
    2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34, 9 Q8_1 32 40, 10 Q2_K 256 84,
    11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210, 15 Q8_K 256 292, 16 IQ2_XXS 256 66,
    17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, 19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110, 22 IQ2_S 256 82,
    23 IQ4_XS 256 136, 29 IQ1_M 256 56, 34 TQ1_0 256 54, 35 TQ2_0 256 66, 39 MXFP4 32 17, 40 NVFP4 64 36,
    41 Q1_0 128 18
"""
BLOCKS = {
    int(number): (name, int(elements), int(block_bytes))
    for number, name, elements, block_bytes in map(str.split, _BLOCKS.split(","))
}
"""Number of each quantised type: its name, the elements of a block, and the bytes of a block."""

_NUMBERS = dict(enumerate(["u1", "i1", "u2", "i2", "u4", "i4", "f4", "?"])) | {10: "u8", 11: "i8", 12: "f8"}
_TEXT, _ARRAY = 8, 9
_KINDS = (
    *("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32"),
    *("BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"),
)
_VERSIONS = (2, 3)
MOST_NESTING = 4  # of arrays; no model has arrays of arrays
MOST_INDEX_BYTES = 64 << 20  # a vocabulary of 256 000 tokens with its merges takes some 15 MB
FIRST_BYTES = 1 << 20
MOST_DIMENSIONS = 8  # ggml has four
MOST_ALIGNMENT = 1 << 20
_U32, _U64 = Struct("<I"), Struct("<Q")
_HINT = "It is damaged, or was cut short: download it, or convert the model, again"


class _Tensor(NamedTuple):
    name: str
    type_name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class Gguf:
    """The format; see the module's docstring."""

    name = "GGUF"
    suffixes: tuple[str, ...] = (".gguf",)

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the only model of a folder, whole or split; see `Format.files_of`."""
        models = {series_of(name) or name for name in names}
        if len(models) > 1:
            hint = "Name the one to load, or all parts of it by a pattern"
            raise FormatError(f"the folder holds {len(models)} models of GGUF: {names_text(names)}", hint=hint)
        return names

    def is_format(self, head: bytes) -> bool:
        """Recognise the first four bytes; see `Format.is_format`."""
        return head.startswith(b"GGUF")

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the tensors; see `Format.read_index`."""
        found = in_parallel(_read_file, files, role="index")
        metadata: dict[str, str] = {}
        types: dict[str, str] = {}
        for _, own_types, own, _ in reversed(found):  # the first part has the metadata of the model
            metadata.update(own)
            types.update(own_types)
        tensors = [tensor for tensors, *_ in found for tensor in tensors]
        with about(files[0]):
            _check_parts(files[0].name, metadata, len(files), len(tensors))
        kinds = {key: kind for _, _, _, own in reversed(found) for key, kind in own.items()}
        own_notes = {TYPES_KEY: types, KINDS_KEY: kinds}
        return CheckpointIndex(tensors, metadata | {key: json.dumps(each) for key, each in own_notes.items() if each})


@hookimpl
def streamer_format() -> Format:
    """Return the format."""
    return Gguf()


def _check_parts(name: str, metadata: dict[str, str], files: int, tensors: int) -> None:
    parts = metadata.get("split.count", "0")
    if parts not in ("0", str(files)):
        what = (
            f"this is a part of a model of {parts[:20]} parts"
            if files == 1
            else f"{files} of {parts[:20]} parts are there"
        )
        series = series_of(name)
        pattern = f"{series[0]}*-of-{series[1]}{series[2]}" if series else "the pattern of their names"
        raise FormatError(what, hint=f"Fetch all parts into one folder, and load them together: {pattern}")
    count = metadata.get("split.tensors.count")
    if parts != "0" and count is not None and count != str(tensors):
        raise FormatError(
            f"the parts hold {tensors} tensors, and say {count[:20]}", hint="Fetch all parts of one model"
        )


def _read_file(file: CheckpointFile) -> tuple[list[TensorPlace], dict[str, str], dict[str, str], dict[str, str]]:
    """Return the tensors of a file, the types of its quantised tensors, its metadata, and the types of the metadata."""
    with about(file, _HINT):
        cursor = _Cursor(file)
        tensors, values, kinds = _parsed(cursor)
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            raise FormatError(f"the alignment is {quoted(str(alignment)[:40])}, not a power of two")
        data_begin = -(-cursor.position // alignment) * alignment
        _check_places(tensors, alignment, file.size_bytes - data_begin)
        places = [TensorPlace(each.name, each.dtype, each.shape, file, data_begin + each.offset) for each in tensors]
        types = {each.name: each.type_name for each in tensors if each.type_name != each.dtype}
        return places, types, {key: _text(value) for key, value in values.items()}, kinds


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check_places(tensors: Sequence[_Tensor], alignment: int, data_bytes: int) -> None:
    end = 0
    for each in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes)):
        if each.offset % alignment:
            raise FormatError(f"tensor {quoted(each.name)} begins at offset {each.offset}, which is not aligned")
        if each.offset < end:
            raise FormatError(f"tensor {quoted(each.name)} overlaps with another")
        end = each.offset + each.size_bytes
        if end > data_bytes:
            raise FormatError(f"tensor {quoted(each.name)} ends {end - data_bytes} bytes behind the file")


def _parsed(cursor: _Cursor) -> tuple[list[_Tensor], dict[str, Any], dict[str, str]]:
    head = cursor.take(4)
    if head != b"GGUF":
        raise not_of("GGUF file", head + cursor.take(4), _HINT)
    version = cursor.u32()
    if version not in _VERSIONS:
        is_big = version in (_VERSIONS[0] << 24, _VERSIONS[1] << 24)
        what = "this GGUF file is big-endian" if is_big else f"this is GGUF of version {version}, not 2 or 3"
        raise FormatError(what, hint="Convert it with a current llama.cpp")
    tensor_count, key_count = cursor.u64(), cursor.u64()
    cursor.check_room(tensor_count, 24)  # each tensor has at least two lengths, a type and an offset
    cursor.check_room(key_count, 13)
    values: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for _ in range(key_count):
        key = cursor.text()
        if key in values:
            raise FormatError(f"the metadata has {quoted(key)} twice")
        kind, begin = cursor.u32(), cursor.position
        values[key] = cursor.value(kind, 0)
        kinds[key] = f"ARRAY[{_KINDS[cursor.u32_at(begin)]}]" if kind == _ARRAY else _KINDS[kind]
    return [_tensor(cursor) for _ in range(tensor_count)], values, kinds


def _tensor(cursor: _Cursor) -> _Tensor:
    name, dimensions = cursor.text(), cursor.u32()
    if dimensions > MOST_DIMENSIONS:
        raise FormatError(f"tensor {quoted(name)} has {dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]  # the file has the last dimension first
    number, offset = cursor.u32(), cursor.u64()
    if number in _PLAIN:
        dtype = _PLAIN[number]
        return _Tensor(name, dtype, dtype, shape, offset, prod(shape) * bits_of(dtype) // 8)
    if number not in BLOCKS:
        hint = "It is of a newer llama.cpp than this program knows"
        raise FormatError(f"tensor {quoted(name)} has the unknown type {number}", hint=hint)
    type_name, elements, block_bytes = BLOCKS[number]
    if not shape or shape[-1] % elements:
        raise FormatError(f"tensor {quoted(name)} of {type_name} has rows that are no whole blocks of {elements}")
    shape = (*shape[:-1], shape[-1] // elements * block_bytes)
    return _Tensor(name, type_name, "U8", shape, offset, prod(shape))


class _Cursor:
    """Reads values one after the other from the beginning of a file, and fetches more of the file as needed.

    Attributes:
        position: Offset of the next value.
    """

    def __init__(self, file: CheckpointFile) -> None:
        self._file, self.position = file, 0
        self._data = file.read(0, min(FIRST_BYTES, file.size_bytes))

    def take(self, size_bytes: int) -> bytes:
        """Return the next bytes."""
        begin, self.position = self.position, self.position + size_bytes
        if self.position > len(self._data):
            self._fetch(self.position)
        return self._data[begin : self.position]

    def u32(self) -> int:
        """Return the next number of four bytes."""
        return int(_U32.unpack(self.take(4))[0])

    def u32_at(self, position: int) -> int:
        """Return a number of four bytes that was read before."""
        return int(_U32.unpack_from(self._data, position)[0])

    def u64(self) -> int:
        """Return the next number of eight bytes."""
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> str:
        """Return the next text."""
        length = self.u64()
        self.check_room(length, 1)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"a text before byte {self.position} is not UTF-8") from error

    def value(self, kind: int, depth: int) -> Any:
        """Return the next value of a type; an array as a list."""
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array(depth)
        return self._numbers(kind, 1)[0]

    def check_room(self, count: int, least_bytes: int) -> None:
        """Refuse a count of values that the file has no room for, before any is read."""
        if count * least_bytes > self._file.size_bytes - self.position:
            raise FormatError(f"the file says {count} values at byte {self.position}, and has no room for them")

    def _array(self, depth: int) -> list[Any]:
        if depth == MOST_NESTING:
            raise FormatError(f"arrays of the metadata are nested deeper than {MOST_NESTING}")
        kind, count = self.u32(), self.u64()
        if kind not in (_TEXT, _ARRAY):
            return self._numbers(kind, count)
        self.check_room(count, 8)
        read: Callable[[], Any] = self.text if kind == _TEXT else lambda: self.value(kind, depth + 1)
        return [read() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise FormatError(f"a value before byte {self.position} has the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind]).newbyteorder("<")
        self.check_room(count, dtype.itemsize)
        numbers: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return numbers

    def _fetch(self, end: int) -> None:
        size_bytes = self._file.size_bytes
        if end > min(size_bytes, MOST_INDEX_BYTES):
            if end > size_bytes:
                raise TruncatedError("the file ends inside of its metadata", uri=self._file.uri, hint=_HINT)
            raise FormatError(f"the metadata takes more than {MOST_INDEX_BYTES >> 20} MiB")
        wanted = min(size_bytes, MOST_INDEX_BYTES, max(end, 2 * len(self._data)))
        self._data += self._file.read(len(self._data), wanted)
