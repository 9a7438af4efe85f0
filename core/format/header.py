"""The header of a safetensors object: an 8-byte length N, N bytes of JSON, then the data.

Guarantees: accepted tensors have distinct names, and together cover every byte of the data section exactly once.
Lengths are checked before memory is allocated. The reference implementation (safetensors 0.8) accepts every header that
is accepted here, with the same meaning. This module is stricter on purpose: it refuses a key that occurs twice, and a
tensor or a dtype written as another JSON type. It also refuses ranks above `max_rank`, entries of more than 65 536
characters, and more than 100 000 members of metadata. So even a malformed header costs at most ten times its size in
memory.

Refuses with HeaderError, or with TruncatedError if the header is valid but the object ends too early; never with
another error, whatever the bytes are.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from streamer.core.errors import HeaderError, TruncatedError
from streamer.core.format.header_entries import Entries, Row, TensorEntry, read_document
from streamer.core.format.strict_json import decode_utf8
from streamer.core.quoting import quoted

LENGTH_BYTES = 8
MAX_JSON_BYTES = 100_000_000  # the reference's own limit

_HINT = "It is damaged, or no safetensors file: download it, or save it, again"


class Header(NamedTuple):
    """The content of a header."""

    entries: Sequence[TensorEntry]  # all tensors, in the order of their bytes in the object
    metadata: dict[str, str] | None  # the ``__metadata__`` member, or None if it is absent or null
    data_begin: int  # offset of the data section: 8 + N


def header_size_bytes(prefix: bytes, object_size: int, *, uri: str) -> int:
    r"""Return how many bytes to read before `parse_header` can be called.

    Returns:
        8 + N; never more than `object_size`.

    Example:
        >>> header_size_bytes(b"\x02\0\0\0\0\0\0\0", 10, uri="m.safetensors")
        10
    """
    if object_size < LENGTH_BYTES:
        what = f"has {object_size} bytes, a safetensors file at least {LENGTH_BYTES}" if object_size else "is empty"
        raise HeaderError(f"the object {what}", uri=uri, hint="Upload or download it again")
    _check_read(prefix, LENGTH_BYTES, object_size, uri)
    json_bytes = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    is_possible = 0 < json_bytes <= MAX_JSON_BYTES
    is_too_long = json_bytes > object_size - LENGTH_BYTES
    if is_too_long or not is_possible:
        _refuse_foreign(prefix, uri)
    if not is_possible:
        raise HeaderError(
            f"the first 8 bytes give a header of {json_bytes} bytes, allowed are 1 to {MAX_JSON_BYTES}",
            uri=uri,
            hint=_HINT,
        )
    if is_too_long:
        raise HeaderError(
            f"the header of {json_bytes} bytes does not fit in the {object_size} bytes of the object",
            uri=uri,
            hint="It was cut short, or is no safetensors file",
        )
    return LENGTH_BYTES + json_bytes


def parse_header(data: bytes | memoryview, object_size: int, *, uri: str, max_rank: int = 64) -> Header:
    """Read a header and check that it fits its object."""
    view = memoryview(data).cast("B")
    data_begin = header_size_bytes(bytes(view[:LENGTH_BYTES]), object_size, uri=uri)
    _check_read(view, data_begin, object_size, uri)
    if bytes(view[LENGTH_BYTES : LENGTH_BYTES + 1]).strip() not in (b"{", b""):
        _refuse_foreign(view, uri)
    try:
        # The decoded text gets no local name, so that its memory (up to four bytes a character) is freed before checks.
        document = read_document(decode_utf8(view[LENGTH_BYTES:data_begin]), data_begin=data_begin, max_rank=max_rank)
        rows = _in_file_order(document.rows, data_begin)
        _check_names(rows)
        _check_end(rows, data_begin, object_size)
    except UnicodeDecodeError as error:
        what = f"the header is not UTF-8: {error.reason} at byte {error.start}"
        raise HeaderError(what, uri=uri, hint=_HINT) from error
    except MemoryError as error:
        hint = "Give the process more memory"
        raise HeaderError("the header needs more memory than there is", uri=uri, hint=hint) from error
    except (HeaderError, TruncatedError) as error:
        error.uri, error.hint = uri, error.hint or _HINT
        raise
    return Header(Entries(rows), document.metadata, data_begin)


def _check_read(data: bytes | memoryview, needed_bytes: int, object_size: int, uri: str) -> None:
    if len(data) < needed_bytes:
        raise TruncatedError(
            f"{len(data)} bytes were read where the header takes {needed_bytes}",
            uri=uri,
            byte_range=(0, needed_bytes),
            object_size=object_size,
            hint="Load again",
        )


def _refuse_foreign(data: bytes | memoryview, uri: str) -> None:
    from streamer.core.format.foreign_formats import foreign_format  # noqa: PLC0415 (an error)

    foreign = foreign_format(bytes(data[:LENGTH_BYTES]))
    if foreign is not None:
        raise HeaderError(f"this is no safetensors file, but {foreign.what}", uri=uri, hint=foreign.hint)


def _in_file_order(rows: list[Row], data_begin: int) -> list[Row]:
    """Sort the rows, and check that each tensor begins at the end of the one before it."""
    if _first_misplaced(rows, data_begin) is None:
        return rows  # most writers have sorted already
    rows = sorted(rows, key=itemgetter(3, 4))
    index = _first_misplaced(rows, data_begin)
    if index is None:
        return rows
    _check_names(rows)  # two tensors of one name often overlap; the name is the better error
    entries = Entries(rows)
    position = entries[index - 1].end if index else data_begin
    name, begin = quoted(entries[index].name), entries[index].begin
    if begin > position:
        raise HeaderError(f"bytes {position}-{begin - 1}, before tensor {name}, belong to no tensor")
    raise HeaderError(f"tensor {name} begins at byte {begin}, inside tensor {quoted(entries[index - 1].name)}")


def _first_misplaced(rows: list[Row], position: int) -> int | None:
    for index, (_, _, _, begin, end) in enumerate(rows):
        if begin != position:
            return index
        position = end
    return None


def _check_names(rows: list[Row]) -> None:
    if len(set(map(itemgetter(0), rows))) == len(rows):
        return
    seen: set[str] = set()
    for name, *_ in rows:
        if name in seen:
            raise HeaderError(f"tensor {quoted(name)} occurs twice")
        seen.add(name)


def _check_end(rows: list[Row], data_begin: int, object_size: int) -> None:
    end = rows[-1][4] if rows else data_begin
    if end > object_size:
        raise TruncatedError(
            f"the tensors end at byte {end}, the object has {object_size}",
            byte_range=(object_size, end),
            object_size=object_size,
            hint="It was cut short: upload or download it again",
        )
    if end < object_size:
        raise HeaderError(f"bytes {end}-{object_size - 1}, after the last tensor, belong to no tensor")
