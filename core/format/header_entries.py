"""Reads the entry of each tensor from the JSON text of a safetensors header.

Guarantees: every entry is valid by itself: an existing dtype, whole unsigned numbers, as many bytes between its
offsets as shape and dtype need. Refuses everything else with HeaderError; the caller sets its `uri`. `header.py` checks
whether entries repeat or overlap.

Nearly all entries have one plain form, which the engine reads many times faster than a JSON reader. The strict JSON
reader reads all other members: ``__metadata__``, entries in another form, and entries that the engine does not accept.
So all errors come from the strict reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from json import JSONDecodeError
from typing import Any, NamedTuple, TypeAlias, overload

from streamer import _native
from streamer.core.errors import FormatError, HeaderError
from streamer.core.format import strict_json
from streamer.core.format.dtypes import DTYPE_BITS, MAX_UNSIGNED, byte_length
from streamer.core.quoting import quoted

METADATA_KEY = "__metadata__"
ENCRYPTION_METADATA = "streamer.encryption"  # key of the metadata of an encrypted file
OWN_PREFIX = "streamer."  # that key begins with it, and so do the tensors that only encrypted files have
LORA_METADATA = "lora_adapter_metadata"  # key of the metadata that diffusers' save_lora_weights writes


def differing_keys(of_files: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the keys of the metadata for which the files of a checkpoint have different values."""
    first: dict[str, str] = {}
    return {key for each in of_files for key, value in each.items() if first.setdefault(key, value) != value}


class TensorEntry(NamedTuple):
    """One tensor of a shard."""

    name: str  # name of the tensor: any text; it must not be used as a path
    dtype: str  # a key of `streamer.core.format.dtypes.DTYPE_BITS`
    shape: tuple[int, ...]  # dimensions; empty for a scalar
    begin: int  # offset of its first byte in the object, counted from byte 0 of the object
    end: int  # offset after its last byte


# The fields of a TensorEntry, in the same order. Python's garbage collector scans a plain tuple of text and numbers
# once, and objects of other classes again and again: for a million tensors, that takes longer than reading them.
Row: TypeAlias = tuple[str, str, tuple[int, ...], int, int]

_make_entry = partial(tuple.__new__, TensorEntry)  # TensorEntry(...) without its constructor's Python frame


class Entries(Sequence[TensorEntry]):
    """A sequence of entries that are created when they are used."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entries) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TensorEntry]:
        return map(_make_entry, self.rows)

    @overload
    def __getitem__(self, key: int) -> TensorEntry: ...
    @overload
    def __getitem__(self, key: slice) -> Entries: ...
    def __getitem__(self, key: int | slice) -> TensorEntry | Entries:
        return Entries(self.rows[key]) if isinstance(key, slice) else TensorEntry(*self.rows[key])


class Document(NamedTuple):
    """The members of a header: its entries in the order of the text, and its metadata."""

    rows: list[Row]
    metadata: dict[str, str] | None


MOST_VALUES = 1 << 12  # values shared between rows; a model has some hundred
MOST_CHARACTERS = 1 << 16  # characters of an entry that is not in the plain form; some hundred are usual
MOST_METADATA = 100_000  # members of the metadata; a handful are usual, and each costs twenty times its text

_BITS_OF_DTYPE = dict(DTYPE_BITS)
_OPENING = re.compile(rf'{strict_json.SPACE}\{{{strict_json.SPACE}(?=["}}])')
_CLOSING = re.compile(rf"\}}{strict_json.SPACE}\Z")


def read_document(text: str, *, data_begin: int, max_rank: int) -> Document:
    """Read all members of a header."""
    try:
        return _DocumentReader(text, data_begin, max_rank).read()
    except JSONDecodeError as error:
        raise HeaderError(f"the header is not JSON: {error.msg} at character {error.pos}") from error
    except FormatError:
        raise
    except ValueError as error:
        raise HeaderError(f"the header is not acceptable JSON: {error}") from error


class _DocumentReader:
    def __init__(self, text: str, data_begin: int, max_rank: int) -> None:
        self._text = text
        self._json = strict_json.JsonReader(text, window=MOST_CHARACTERS)
        self._data_begin = data_begin
        self._max_rank = max_rank
        self._rows: list[Row] = []
        self._values: dict[Any, Any] = {}  # texts, whole numbers and shapes
        self._metadata: list[dict[str, str] | None] = []

    def read(self) -> Document:
        position = self._after(_OPENING, 0, "Expecting an object")
        while self._text[position] == '"':
            position = self._read_plain_entries(position)
            if self._text[position] == '"':
                position = self._read_member(position)
        self._after(_CLOSING, position, "Expecting nothing but spaces behind the brace")
        if len(self._metadata) > 1:
            raise HeaderError(f"the header holds {METADATA_KEY} twice")
        return Document(self._rows, self._metadata[0] if self._metadata else None)

    def _after(self, pattern: re.Pattern[str], position: int, expectation: str) -> int:
        match = pattern.match(self._text, position)
        if match is None:
            raise JSONDecodeError(expectation, self._text, position)
        return match.end()

    def _read_plain_entries(self, position: int) -> int:
        """Read entries in the plain form, up to a member in another form; return the position of that member."""
        return _native.read_plain_entries(
            self._text, position, self._data_begin, self._rows, bits_of_dtype=_BITS_OF_DTYPE, max_rank=self._max_rank
        )

    def _read_member(self, position: int) -> int:
        name, position = self._json.read(position)
        position = self._json.after_name(position)
        if name == METADATA_KEY:
            position = self._read_metadata(position)
        else:
            value, position = self._read_entry(name, position)
            self._rows.append(self._shared(_row(name, value, self._data_begin, self._max_rank)))
        return self._json.after_value(position)

    def _shared(self, row: Row) -> Row:
        """Share equal values between rows: a number or a dtype takes more memory than its text."""
        if len(self._values) > MOST_VALUES:
            self._values.clear()
        once = self._values.setdefault
        name, dtype, shape, begin, end = row
        shape = tuple(once(number, number) for number in shape)
        return name, once(dtype, dtype), once(shape, shape), once(begin, begin), once(end, end)

    def _read_entry(self, name: str, position: int) -> tuple[Any, int]:
        try:
            return self._json.read(position)
        except JSONDecodeError:
            raise
        except ValueError as error:
            raise HeaderError(f"tensor {quoted(name)}: {error}") from error

    def _read_metadata(self, position: int) -> int:
        if not self._json.is_object(position):
            value, position = self._json.read(position)
            if value is not None:
                raise HeaderError(f"{METADATA_KEY} is {quoted(value)}, not a JSON object")
            self._metadata.append(None)
            return position
        metadata: dict[str, str] = {}
        self._metadata.append(metadata)

        def read_text(key: str, begin: int) -> int:
            strict_json.refuse_duplicate(metadata, key)
            if len(metadata) == MOST_METADATA:
                raise HeaderError(f"{METADATA_KEY} holds more than {MOST_METADATA} members")
            text, end = self._json.read(begin)
            if not isinstance(text, str):
                raise HeaderError(f"{METADATA_KEY} holds {quoted(text)} under {quoted(key)}, not a string")
            metadata[key] = text
            return end

        return self._json.read_members(position, read_text)


def _row(name: str, fields: Any, data_begin: int, max_rank: int) -> Row:
    try:
        if not isinstance(fields, dict):
            raise FormatError(f"its entry is {quoted(fields)}, not a JSON object")
        missing = [field for field in ("dtype", "shape", "data_offsets") if field not in fields]
        if missing:
            raise FormatError(f"its entry has no {' and no '.join(missing)}")
        if not isinstance(fields["dtype"], str):
            raise FormatError(f"dtype is {quoted(fields['dtype'])}, not a string")
        shape = _unsigned_numbers("shape", fields["shape"])
        _check_rank(shape, max_rank)
        size_bytes = byte_length(shape, fields["dtype"])
        begin, end = _offsets(fields["data_offsets"])
        if end - begin != size_bytes:
            raise _size_error(begin, end, size_bytes)
    except FormatError as error:
        raise _naming(name, error) from error
    return name, fields["dtype"], shape, data_begin + begin, data_begin + end


def _check_rank(shape: tuple[int, ...], max_rank: int) -> None:
    if len(shape) > max_rank:
        raise FormatError(f"shape has {len(shape)} dimensions, more than the {max_rank} that Options(max_rank) allows")


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


def _naming(name: str, error: FormatError) -> HeaderError:
    return HeaderError(f"tensor {quoted(name)}: {error.message}", hint=error.hint)
