"""Finds the bytes of a tensor in an archive of ``torch.save`` from the bytes around them.

The archive is a zip of stored members. The tensor's bytes are one aligned member; all other members lie before or after
it. So a reader that guesses the place can read the bytes directly to their destination, and then check the guess with
the rest. Guarantees: a result equals the result of ``torch.load``. For an archive of any other form the result is None;
nothing in the archive is imported or called.
"""

from __future__ import annotations

import re
import sys
import zipfile
from math import prod
from typing import Any, NamedTuple

from streamer.core.format.dtypes import DTYPES_BY_TORCH_NAME, bits_of
from streamer.core.format.plain_pickle import GlobalName, Record, empty_dict, read_plain
from streamer.core.format.positioned_file import PositionedFile

# The dtype of each class of storages that `torch.save` names.
STORAGES = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ComplexFloatStorage": "C64",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
    "UntypedStorage": "",  # newer dtypes are named beside the storage
}
_RECORDS: frozenset[GlobalName] = frozenset(
    {("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")}
)
# The names that a pickle of torch gives to storages and dtypes, each with the text that stands for it.
TORCH_NAMES: dict[GlobalName, str] = {
    **{("torch", name): name for name in (*STORAGES, *DTYPES_BY_TORCH_NAME)},
    ("torch.storage", "UntypedStorage"): "UntypedStorage",
}
_BUILTINS: dict[GlobalName, Any] = {
    **TORCH_NAMES,
    ("collections", "OrderedDict"): empty_dict,
}
# A member's local header: 26 bytes, the lengths of its name and of the extra field, the name.
_DATA_HEADER = re.compile(rb"PK\x03\x04.{22}(..)(..)([^/]{1,255}/data/0)", re.DOTALL)
_LOCAL_HEADER_BYTES = 30
_END_BYTES = 22  # the record at the end of a zip, with the place and the length of the directory
_MOST_CACHED = 1000  # archives of a kilobyte each; a model has a handful of shapes
_MOST_PICKLE_BYTES = 1 << 16  # a tensor needs 200 bytes, and a few for each dimension


class StoredTensor(NamedTuple):
    """A contiguous tensor in an archive."""

    dtype: str  # a key of `streamer.core.format.dtypes.DTYPE_BITS`
    shape: tuple[int, ...]  # dimensions
    begin: int  # offset of its first byte in the archive


class SavedArchive(NamedTuple):
    """The bytes of an archive around the bytes of its tensor."""

    head: bytes  # first bytes of the archive
    tail: bytes  # last bytes of the archive
    size_bytes: int  # size of the whole archive


class Archives:
    """Finds the tensors of many archives; archives that only differ in the bytes of their tensor are parsed once.

    Such archives have equal bytes before the tensor, the same size, and their directory at the same place.
    """

    def __init__(self) -> None:
        self._cache: dict[tuple[bytes, bytes, int], StoredTensor | None] = {}

    def stored_tensor(self, archive: SavedArchive) -> StoredTensor | None:
        """Return the same as the function `stored_tensor`."""
        key = archive.head, archive.tail[-_END_BYTES:], archive.size_bytes
        if key not in self._cache:
            if len(self._cache) == _MOST_CACHED:
                self._cache.clear()
            self._cache[key] = stored_tensor(archive)
        return self._cache[key]


def begin_of_data(head: bytes) -> int | None:
    """Guess the offset of the tensor's bytes from an archive's first bytes; None if it is not among them."""
    for match in _DATA_HEADER.finditer(head):
        name_bytes, extra_bytes = (int.from_bytes(match[number], "little") for number in (1, 2))
        if name_bytes == len(match[3]):
            return match.end() + extra_bytes
    return None


def stored_tensor(archive: SavedArchive) -> StoredTensor | None:
    """Return the tensor in an archive, and its place; None if the archive is not one contiguous tensor."""
    try:
        with zipfile.ZipFile(_ArchiveFile(archive)) as members:
            return _stored_tensor(archive, members)
    except Exception:  # malformed bytes may raise any exception; torch.load then reports the fault
        return None


def _stored_tensor(archive: SavedArchive, members: zipfile.ZipFile) -> StoredTensor | None:
    infos = {info.filename: info for info in members.infolist()}
    (pickled,) = (name for name in infos if name.endswith("/data.pkl"))
    if infos[pickled].file_size > _MOST_PICKLE_BYTES or any(each.compress_type for each in infos.values()):
        return None
    folder = pickled.removesuffix("data.pkl")
    if f"{folder}byteorder" in infos and members.read(f"{folder}byteorder") != sys.byteorder.encode():
        return None
    described = _described(read_plain(members.read(pickled), _RECORDS, _BUILTINS, _storage))
    if described is None:
        return None
    dtype, shape, key = described
    data = infos[f"{folder}data/{key}"]
    if data.file_size != prod(shape) * bits_of(dtype) // 8:
        return None
    lengths = archive.head[data.header_offset + 26 : data.header_offset + _LOCAL_HEADER_BYTES]
    name_and_extra = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:4], "little")
    begin = data.header_offset + _LOCAL_HEADER_BYTES + name_and_extra
    return StoredTensor(dtype, shape, begin) if len(lengths) == 4 and begin <= len(archive.head) else None


def _storage(pid: Any) -> tuple[str, str, int]:
    kind, storage, key, _, count = pid
    if kind != "storage" or storage not in STORAGES or not isinstance(key, str) or not isinstance(count, int):
        raise ValueError(kind)
    return storage, key, count


def _described(rebuilt: Any) -> tuple[str, tuple[int, ...], str] | None:
    """Return dtype, shape and the member with the bytes; None if the tensor is not contiguous in its own storage."""
    if not isinstance(rebuilt, Record):
        return None
    is_v3 = rebuilt.kind == "_rebuild_tensor_v3"
    (storage, key, count), offset, shape, stride, _, hooks, *more = rebuilt.arguments
    dtype = DTYPES_BY_TORCH_NAME[more.pop(0)] if is_v3 and more else STORAGES[storage]
    if not dtype or more or hooks or offset or not all(type(each) is int and each >= 0 for each in shape):
        return None
    elements = count * 8 // bits_of(dtype) if storage == "UntypedStorage" else count
    is_whole = elements == prod(shape) and tuple(stride) == _contiguous(shape)
    return (dtype, tuple(shape), key) if is_whole and storage in STORAGES else None


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class _ArchiveFile(PositionedFile):
    """The archive as a readable file, with zeros for the bytes that are missing here."""

    def __init__(self, archive: SavedArchive) -> None:
        super().__init__(archive.size_bytes)
        self._archive = archive

    def readinto(self, buffer: Any) -> int:
        head, tail, size_bytes = self._archive
        begin = self._position
        end = min(begin + len(buffer), size_bytes)
        tail_begin = size_bytes - len(tail)
        count = max(end - begin, 0)
        buffer[:count] = bytes(count)
        if begin < len(head):
            piece = head[begin:end]
            buffer[: len(piece)] = piece
        if end > tail_begin:
            first = max(begin, tail_begin)
            buffer[first - begin : count] = tail[first - tail_begin : end - tail_begin]
        self._position += count
        return count
