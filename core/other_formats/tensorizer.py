"""Tensorizer's files (``*.tensors``), versions 1 to 5.

Guarantees: every tensor of the index is one range of the file. If the file is not encrypted, the range has the bytes of
the tensor, and the hashes in the headers of the tensors are not compared. If it is, `tensorizer_entries` checks the
header of each tensor. Refuses with FormatError: tensors without data, indexes and lengths that do not fit the file.

Format: https://github.com/coreweave/tensorizer
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from struct import Struct, error
from typing import Any

from streamer.core.encryption.keys import LEAVE_OUT, KeySource
from streamer.core.errors import EncryptionKeyError, FormatError, TamperedError
from streamer.core.format.dtypes import DTYPES_BY_NUMPY_CODE, DTYPES_BY_TORCH_NAME, byte_length
from streamer.core.other_formats.interface import (
    CheckpointFile,
    CheckpointIndex,
    Format,
    TensorPlace,
    about,
    not_of,
    only_file,
)
from streamer.core.other_formats.tensorizer_entries import Entry, encrypted_places
from streamer.core.quoting import quoted
from streamer.core.store.sources import hookimpl

SUFFIX = ".tensors"
MAGIC = b"|TZR|"
ENCRYPTED_VERSION, FLAGS_VERSION, LONG_VERSION, NEWEST_VERSION = 3, 4, 5, 5
_HEADER = Struct("<5sI32s3QQ")  # magic, version, flags, two unused sizes, number of tensors, bytes of the index
_PLACE = Struct("<3Q")  # offset of the tensor's header, of its data, bytes of its data
_LEAST_ENTRY_BYTES = 28
_ENCRYPTED, _VERSIONED = 1, 2  # flags
_PATH = b"\x1e"  # before a name that is a path in nested containers, as JSON
_BY_TORCH_NAME = {f"torch.{torch_name}": name for torch_name, name in DTYPES_BY_TORCH_NAME.items()}
_HINT = "It is damaged, or was cut short: save it, or download it, again"


class Tensorizer:
    """The format; see the module's docstring."""

    name = "Tensorizer"
    suffixes: tuple[str, ...] = (SUFFIX,)

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the only file; see `Format.files_of`."""
        return only_file(names, "files of Tensorizer")

    def is_format(self, head: bytes) -> bool:
        """Recognise the first five bytes; see `Format.is_format`."""
        return head.startswith(MAGIC)

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the tensors; see `Format.read_index`."""
        return CheckpointIndex([place for file in files for place in _read_file(file, None)])

    def read_encrypted_index(self, files: Sequence[CheckpointFile], key: KeySource) -> CheckpointIndex:
        """Find the tensors, which are encrypted; see `EncryptedFormat.read_encrypted_index`."""
        return CheckpointIndex([place for file in files for place in _read_file(file, key)])


@hookimpl
def streamer_format() -> Format:
    """Return the format."""
    return Tensorizer()


def _read_file(file: CheckpointFile, key: KeySource | None) -> list[TensorPlace]:
    with about(file, _HINT):
        entries = _entries(file, is_encrypted=key is not None)
        return [each.place(file) for each in entries] if key is None else encrypted_places(file, entries, key)


def _entries(file: CheckpointFile, *, is_encrypted: bool) -> list[Entry]:
    head = file.read(0, _HEADER.size)
    if not head.startswith(MAGIC):
        raise not_of("file of Tensorizer", head, _HINT)
    _, version, flags, _, _, count, size_bytes = _HEADER.unpack(head)
    if not 1 <= version <= NEWEST_VERSION:
        raise FormatError(f"this is version {version} of Tensorizer's format, not 1 to {NEWEST_VERSION}")
    features = int.from_bytes(flags, "little") if version >= FLAGS_VERSION else 0
    _check_encryption(file, version == ENCRYPTED_VERSION or bool(features & _ENCRYPTED), is_expected=is_encrypted)
    if features & ~(_VERSIONED | _ENCRYPTED):
        raise FormatError(f"this file has features of a newer Tensorizer: {features:#x}")
    if count * _LEAST_ENTRY_BYTES > size_bytes:
        raise FormatError(f"the index of {size_bytes} bytes cannot hold {count} tensors")
    index = _Index(file.read(_HEADER.size, _HEADER.size + size_bytes), is_versioned=bool(features & _VERSIONED))
    try:
        return list(index.entries(count))
    except (error, IndexError, UnicodeDecodeError, ValueError, RecursionError) as cause:
        if isinstance(cause, FormatError):
            raise
        raise FormatError("the index is malformed") from cause


def _check_encryption(file: CheckpointFile, is_encrypted: bool, *, is_expected: bool) -> None:
    if is_encrypted and not is_expected:
        hint = "Give key=: its 32 bytes, the path of a file, env:NAME, or streamer.Passphrase"
        raise EncryptionKeyError("this file is encrypted by Tensorizer, and no key is given", uri=file.uri, hint=hint)
    if is_expected and not is_encrypted:
        raise TamperedError("a key is given, and the file is not encrypted", uri=file.uri, hint=LEAVE_OUT)


class _Index:
    """The entries of an index, one after the other."""

    def __init__(self, data: bytes, *, is_versioned: bool) -> None:
        self._data, self._at, self._is_versioned = data, 0, is_versioned

    def entries(self, count: int) -> Iterator[Entry]:
        """Return the entries of the tensors."""
        for _ in range(count):
            is_long = self._is_versioned and self._numbers("<I")[0] >= LONG_VERSION
            stored_name = self._text("<H")
            name = _name(stored_name)
            self._numbers("<B")  # whether it is a parameter
            stored_dtype = self._text("<B")
            dtype = _dtype(name, stored_dtype.decode())
            dimensions = self._numbers("<B")[0]
            shape = self._numbers(f"<{dimensions}{'Q' if is_long else 'I'}")
            header_begin, begin, size_bytes = self._numbers(_PLACE.format)
            if size_bytes != byte_length(shape, dtype):
                what = f"tensor {quoted(name)} of {list(shape)} has {size_bytes} bytes"
                raise FormatError(what, hint="Tensors of the meta device have no data: leave them out when you save")
            yield Entry(name, dtype, shape, begin, size_bytes, stored_name, stored_dtype, header_begin, is_long)

    def _numbers(self, format_: str) -> tuple[Any, ...]:
        packed = Struct(format_)
        self._at += packed.size
        return packed.unpack_from(self._data, self._at - packed.size)

    def _text(self, length_format: str) -> bytes:
        length = self._numbers(length_format)[0]
        self._at += length
        if self._at > len(self._data):
            raise FormatError("the index ends inside of a text")
        return self._data[self._at - length : self._at]


def _name(data: bytes) -> str:
    if not data.startswith(_PATH):
        return data.decode()
    path = json.loads(data[1:])
    if not isinstance(path, list) or not all(type(each) in (str, int) for each in path):
        raise FormatError("the name of a tensor is no path")
    return ".".join(map(str, path))


def _dtype(name: str, text: str) -> str:
    """Return the dtype; numpy's name, and torch's behind a zero byte if numpy has no such dtype."""
    numpy_name, _, torch_name = text.partition("\0")
    known = _BY_TORCH_NAME.get(torch_name) if torch_name else DTYPES_BY_NUMPY_CODE.get(numpy_name[1:])
    is_little = numpy_name[:1] in ("<", "|")
    if known is None or not is_little:
        raise FormatError(f"tensor {quoted(name)} has the dtype {quoted(text[:40])}, which is not read")
    return known
