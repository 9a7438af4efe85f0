"""What a safetensors header says about each tensor, read from its JSON text.

Guarantees: every entry is right by itself: known dtype, whole unsigned numbers, as many bytes between its
offsets as shape and dtype ask for. Refuses everything else with HeaderError, whose `uri` the caller fills in.

Nearly all headers are written by the reference in one compact form, and a regular expression reads that
form several times faster than a JSON reader does. From the first member in any other form to the end, the strict
JSON reader takes over. Whether entries repeat or overlap is not decided here but in `header.py`.
"""

from __future__ import annotations

import re
from json import JSONDecodeError
from typing import Any, NamedTuple

from streamer.core import strict_json
from streamer.core.dtypes import MAX_UNSIGNED, byte_length
from streamer.core.errors import FormatError, HeaderError
from streamer.core.quoting import quoted

__all__ = ["Document", "TensorEntry", "read_document"]

METADATA_KEY = "__metadata__"


class TensorEntry(NamedTuple):
    """One tensor of a shard.

    Attributes:
        name: Its name; any text, never to be used as a path.
        dtype: A key of `streamer.core.dtypes.DTYPE_BITS`.
        shape: Dimensions; empty for a scalar.
        begin: Offset of its first byte in the object, counted from byte 0 of the object.
        end: Offset after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Document(NamedTuple):
    """The members of a header: its entries in the order of the text, and its metadata."""

    entries: list[TensorEntry]
    metadata: dict[str, str] | None


# One group for the rest makes the matches touch each other: nothing between them goes unread. Offsets of 20
# digits may exceed 64 bits, and escapes need a JSON reader: both are left to the rest.
_STRING = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
_MEMBER = re.compile(
    r'(?:"(?!__metadata__")(?P<name>[^"\\\x00-\x1f]*)": ?'
    r'\{"dtype": ?"(?P<dtype>[A-Z0-9_]+)", ?"shape": ?\[(?P<shape>[0-9, ]*)\], ?'
    r'"data_offsets": ?\[(?P<begin>0|[1-9][0-9]{0,18}), ?(?P<end>0|[1-9][0-9]{0,18})\]\}'
    rf'|"__metadata__": ?(?P<metadata>\{{(?:{_STRING}: ?{_STRING}(?:, ?(?=")|(?=\}})))*\}}))'
    r'(?:, ?(?=")|(?=\}))'
    r"|(?P<rest>.+)",
    re.DOTALL,
)
_OPENING = re.compile(r"[ \t\n\r]*\{")


def read_document(text: str, *, data_begin: int, max_rank: int) -> Document:
    """Read all members of a header.

    Args:
        text: The header, decoded.
        data_begin: Offset of the data section in the object; added to every offset read.
        max_rank: Most dimensions a tensor may have.

    Raises:
        HeaderError: the text is not a JSON object of tensor entries; names the tensor.
    """
    opening = _OPENING.match(text)
    if opening is None:
        raise HeaderError("the header is not a JSON object")
    entries, metadata_texts, rest = _read_plain_members(text, opening.end(), data_begin, max_rank)
    metadata = [_loads(written, opening.end()) for written in metadata_texts]
    for name, value in _loads("{" + rest, len(text) - len(rest) - 1).items():
        if name == METADATA_KEY:
            metadata.append(value)
        else:
            entries.append(_entry(name, value, data_begin, max_rank))
    if len(metadata) > 1:
        raise HeaderError(f"the header holds {METADATA_KEY} twice")
    return Document(entries, _metadata(metadata[0]) if metadata else None)


def _read_plain_members(
    text: str, position: int, data_begin: int, max_rank: int
) -> tuple[list[TensorEntry], list[str], str]:
    """Read members in the compact form; return entries, metadata as written, and the text not read."""
    entries: list[TensorEntry] = []
    metadata_texts: list[str] = []
    kinds = _Kinds(max_rank)
    name = unread = ""
    members = map(re.Match.groups, _MEMBER.finditer(text, position))
    try:
        for name, dtype_text, shape_text, begin_text, end_text, metadata_text, rest in members:
            if dtype_text is None:
                metadata_texts += [metadata_text] if metadata_text else []
                unread = rest or ""
                continue
            dtype, shape, size_bytes = kinds[dtype_text, shape_text]
            begin, end = int(begin_text), int(end_text)
            if end - begin != size_bytes:
                raise _size_error(begin, end, size_bytes)
            entries.append(TensorEntry(name, dtype, shape, data_begin + begin, data_begin + end))
    except ValueError as error:
        raise _naming(name, error) from error
    return entries, metadata_texts, unread


class _Kinds(dict[tuple[str, str], tuple[str, tuple[int, ...], int]]):
    """From dtype and shape as written to dtype, shape and bytes: a model has few different ones."""

    def __init__(self, max_rank: int) -> None:
        self._max_rank = max_rank

    def __missing__(self, written: tuple[str, str]) -> tuple[str, tuple[int, ...], int]:
        dtype, shape_text = written
        try:
            shape = _shape(strict_json.loads(f"[{shape_text}]"), self._max_rank)
        except JSONDecodeError as error:
            raise FormatError(f"shape {quoted(f'[{shape_text}]')} is not a JSON array") from error
        kind = self[written] = dtype, shape, byte_length(shape, dtype)
        return kind


def _loads(text: str, position: int) -> Any:
    """Read JSON that stands at `position` of the header."""
    try:
        return strict_json.loads(text)
    except JSONDecodeError as error:
        raise HeaderError(f"the header is not JSON: {error.msg} at character {position + error.pos}") from error
    except ValueError as error:
        raise HeaderError(f"the header is not acceptable JSON: {error}") from error


def _entry(name: str, fields: Any, data_begin: int, max_rank: int) -> TensorEntry:
    try:
        if not isinstance(fields, dict):
            raise FormatError(f"its entry is {quoted(fields)}, not a JSON object")
        missing = [field for field in ("dtype", "shape", "data_offsets") if field not in fields]
        if missing:
            raise FormatError(f"its entry has no {' and no '.join(missing)}")
        if not isinstance(fields["dtype"], str):
            raise FormatError(f"dtype is {quoted(fields['dtype'])}, not a string")
        shape = _shape(fields["shape"], max_rank)
        size_bytes = byte_length(shape, fields["dtype"])
        begin, end = _offsets(fields["data_offsets"])
        if end - begin != size_bytes:
            raise _size_error(begin, end, size_bytes)
    except FormatError as error:
        raise _naming(name, error) from error
    return TensorEntry(name, fields["dtype"], shape, data_begin + begin, data_begin + end)


def _shape(value: Any, max_rank: int) -> tuple[int, ...]:
    shape = _unsigned_numbers("shape", value)
    if len(shape) > max_rank:
        raise FormatError(f"shape has {len(shape)} dimensions, more than the {max_rank} allowed")
    return shape


def _offsets(value: Any) -> tuple[int, ...]:
    offsets = _unsigned_numbers("data_offsets", value)
    if len(offsets) != 2:
        raise FormatError(f"data_offsets holds {len(offsets)} numbers, not 2")
    return offsets


def _unsigned_numbers(field: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise FormatError(f"{field} is {quoted(value)}, not a JSON array")
    for number in value:
        # bool is a subclass of int, and JSON's true is no number.
        if type(number) is not int or not 0 <= number <= MAX_UNSIGNED:
            raise FormatError(f"{field} holds {quoted(number)}, not a whole number from 0 to 2**64 - 1")
    return tuple(value)


def _size_error(begin: int, end: int, size_bytes: int) -> FormatError:
    return FormatError(f"shape and dtype make {size_bytes} bytes, data_offsets [{begin}, {end}] hold {end - begin}")


def _naming(name: str, error: ValueError) -> HeaderError:
    message = error.message if isinstance(error, FormatError) else f"{error}"
    return HeaderError(f"tensor {quoted(name)}: {message}", hint=getattr(error, "hint", None))


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise HeaderError(f"{METADATA_KEY} is {quoted(value)}, not a JSON object")
    for key, text in value.items():
        if not isinstance(text, str):
            raise HeaderError(f"{METADATA_KEY} holds {quoted(text)} under {quoted(key)}, not a string")
    return value
