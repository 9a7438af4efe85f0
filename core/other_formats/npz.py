"""NumPy's archives, as ``numpy.savez`` and ``numpy.savez_compressed`` write them.

Guarantees: the arrays equal those of ``numpy.load(allow_pickle=False)``, in C order. No array is unpickled. An array
that is read whole has the CRC-32 that the archive says. Refuses with FormatError: arrays of objects, texts, structures
and dtypes that safetensors lacks; members that are no array.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from streamer import _native
from streamer.core.errors import FormatError
from streamer.core.format.dtypes import DTYPES_BY_NUMPY_CODE, bits_of
from streamer.core.other_formats.interface import (
    CheckpointFile,
    CheckpointIndex,
    Format,
    Reader,
    TensorPlace,
    about,
    only_file,
)
from streamer.core.other_formats.readers import Checked, Laid, Strided, Swapped
from streamer.core.other_formats.zip_directory import ZIP_HEAD, ZipMember, read_members, reader_of
from streamer.core.quoting import quoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import hookimpl

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
HEADER_BYTES = 256  # numpy writes 128
MOST_HEADER_BYTES = 10_000  # numpy's own limit
_EMPTY_ZIP = b"PK\5\6"
_HINT = "Save it again, with numpy.savez or safetensors.numpy.save_file"


class _Array(NamedTuple):
    """The header of an array, parsed; `begin` is the offset of the array's data in the member."""

    dtype: str
    shape: tuple[int, ...]
    is_fortran: bool
    is_big: bool
    begin: int


class Npz:
    """The format; see the module's docstring."""

    name = "NumPy"
    suffixes: tuple[str, ...] = (".npz",)

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the only archive; see `Format.files_of`."""
        return only_file(names, "archives of NumPy")

    def is_format(self, head: bytes) -> bool:
        """Recognise an archive whose first member is an array; see `Format.is_format`."""
        name_bytes = int.from_bytes(head[26:28], "little")
        is_array = head.startswith(ZIP_HEAD) and head[30 : 30 + name_bytes].endswith(SUFFIX.encode())
        return is_array or (head.startswith(_EMPTY_ZIP) and len(head) == 22)

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the arrays; see `Format.read_index`."""
        return CheckpointIndex([place for file in files for place in _read_file(file)])


@hookimpl
def streamer_format() -> Format:
    """Return the format."""
    return Npz()


def _read_file(file: CheckpointFile) -> list[TensorPlace]:
    with about(file, _HINT):
        members = list(read_members(file).values())
        for member in members:
            if not member.name.endswith(SUFFIX):
                raise FormatError(f"the archive holds {quoted(member.name)}, which is no array")
        readers = [reader_of(file, member) for member in members]
        heads = _heads(file, members, readers, HEADER_BYTES)
        laid, places = Laid(), []
        for member, reader, head in zip(members, readers, heads, strict=True):
            name = member.name.removesuffix(SUFFIX)
            try:
                places.append(_place(name, _Member(file, member, reader, head), laid))
            except FormatError as error:
                error.message = f"array {quoted(name)}: {error.message}"
                raise
        return places


def _heads(
    file: CheckpointFile, members: Sequence[ZipMember], readers: Sequence[Reader | None], size_bytes: int
) -> list[bytes]:
    """Read the first bytes of every member."""
    plain = [member for member, reader in zip(members, readers, strict=True) if reader is None]
    ranges = [(each.begin, each.begin + min(size_bytes, each.size_bytes)) for each in plain]
    stored = iter(file.read_ranges(ranges))
    deflated = [(reader, min(size_bytes, reader.size_bytes)) for reader in readers if reader is not None]
    inflated = iter(in_parallel(lambda each: _first(*each), deflated, role="index") if deflated else ())
    return [next(stored if reader is None else inflated) for reader in readers]


def _first(reader: Reader, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    if buffer:
        reader.read_into(memoryview(buffer), 0)
    return bytes(buffer)


class _Member(NamedTuple):
    """A member of the archive, its reader if it is compressed, and its first bytes."""

    file: CheckpointFile
    member: ZipMember
    reader: Reader | None
    head: bytes


def _place(name: str, of: _Member, laid: Laid) -> TensorPlace:
    file, member, reader, head = of
    needed = _header_end(head)
    if needed > len(head):
        (head,) = _heads(file, [member], [reader], needed)
    array = _parsed(head, needed)
    item_bytes = bits_of(array.dtype) // 8
    size_bytes = prod(array.shape) * item_bytes
    if array.begin + size_bytes != member.size_bytes:
        raise FormatError(f"its member has {member.size_bytes} bytes, its header says {array.begin + size_bytes}")
    begin = array.begin + (member.begin if reader is None else 0)
    crc = _crc_of_data(member.crc, head[: array.begin], size_bytes) if reader is None else None
    is_big = array.is_big and item_bytes > 1
    is_transposed = array.is_fortran and sum(size > 1 for size in array.shape) > 1 and size_bytes > 0
    if crc is not None and (is_big or is_transposed):  # Python reads it
        reader, begin, crc = Checked(file, begin, size_bytes, crc=crc, name=member.name), 0, None
    if is_big:
        part_bytes = item_bytes // 2 if array.dtype == "C64" else item_bytes
        reader, begin = Swapped(reader or file, begin, size_bytes, part_bytes), 0
    if is_transposed:
        strides = [prod(array.shape[:dimension]) for dimension in range(len(array.shape))]
        reader = Strided(reader or file, begin, array.shape, strides, item_bytes=item_bytes, laid=laid)
        begin = 0
    return TensorPlace(name, array.dtype, array.shape, file, begin, reader, crc)


def _crc_of_data(crc: int, header: bytes, size_bytes: int) -> int:
    """Return the CRC-32 of an array's data, from that of its member, which is the header and the data."""
    # crc_combine(a, b, n) is f(a, n) ^ b for some f. So it also finds b if it gets the combined value in place of b.
    return _native.crc_combine("crc32", _native.crc("crc32", header), crc, size_bytes)


def _header_end(head: bytes) -> int:
    """Return the offset at which the header of an array ends."""
    version = head[len(MAGIC) : len(MAGIC) + 1]
    if not head.startswith(MAGIC) or version not in (b"\1", b"\2", b"\3"):
        raise FormatError("its member does not begin like an array of NumPy")
    length_end = 10 if version == b"\1" else 12
    length = int.from_bytes(head[8:length_end], "little")
    if length > MOST_HEADER_BYTES or len(head) < length_end:
        raise FormatError(f"its header has {length} bytes")
    return length_end + length


def _parsed(head: bytes, end: int) -> _Array:
    begin = 10 if head[len(MAGIC)] == 1 else 12
    try:
        header: Any = ast.literal_eval(head[begin:end].decode("latin-1" if head[len(MAGIC)] < 3 else "utf-8").strip())
    except Exception:  # the header may be not text, another literal, or nested too deep
        raise FormatError("its header cannot be read") from None
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise FormatError("its header has other keys than descr, fortran_order and shape")
    descr, is_fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    if type(is_fortran) is not bool or type(shape) is not tuple:
        raise FormatError("its header has values of other types")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise FormatError("its shape is impossible")
    return _Array(_dtype(descr), shape, is_fortran, descr[0] == ">", end)


def _dtype(descr: Any) -> str:
    if isinstance(descr, str) and descr[:1] in ("<", ">", "|", "=") and descr[1:] in DTYPES_BY_NUMPY_CODE:
        return DTYPES_BY_NUMPY_CODE[descr[1:]]
    if isinstance(descr, str) and descr[1:2] == "O":
        raise FormatError("it holds Python objects, which are pickled: loading them may run code")
    raise FormatError(f"its dtype {quoted(str(descr)[:80])} is not one that safetensors has")
