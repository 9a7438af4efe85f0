"""The members of a zip archive, and where their bytes are: read by ranges, as a format needs them.

Python's own `zipfile` trusts many values of an archive. This module checks every value against the others: the
directory ends where the end record begins, no two members share a byte or a name, and each local header repeats the
name of the directory. Refuses everything else with FormatError, also encrypted and split archives and comments.

Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from streamer.core.errors import FormatError
from streamer.core.other_formats.interface import CheckpointFile, Reader, about, not_of
from streamer.core.other_formats.readers import Inflated
from streamer.core.quoting import quoted

ZIP_HEAD = b"PK\x03\x04"
MOST_DIRECTORY_BYTES = 32 << 20  # 300 000 members
FIRST_TAIL_BYTES = 64 << 10  # holds a directory of about 700 members, so most archives need no second request
STORED, DEFLATED = 0, 8

_END = Struct("<4s4H2LH")  # signature, disk, its first, entries here, entries, directory bytes, begin, comment bytes
_LOCATOR = Struct("<4sLQL")  # signature, disk, begin of the zip64 end record, disks
_END_64 = Struct("<4sQ2H2L4Q")
_ENTRY = Struct("<4s6H3L5H2L")
_LOCAL = Struct("<4s5H3L2H")
_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags: encrypted in any way, or with a masked directory
_NO_NUMBER = 0xFFFFFFFF
_ZIP64 = 1
_HINT = "It is damaged, or was cut short: save it, or download it, again"


class ZipMember(NamedTuple):
    """One member."""

    name: str
    begin: int  # offset of its first stored byte in the archive
    stored_bytes: int  # number of its bytes in the archive
    size_bytes: int  # number of its bytes once they are inflated; the same for a stored member
    is_deflated: bool  # whether it is compressed
    crc: int  # CRC-32 of its content


class _Entry(NamedTuple):
    name: bytes
    flags: int
    method: int
    crc: int
    stored_bytes: int
    size_bytes: int
    header: int  # offset of the local header


def reader_of(file: CheckpointFile, member: ZipMember) -> Reader | None:
    """Return a reader of the content of a member; None for a stored one, which the file holds as it is."""
    if not member.is_deflated:
        return None
    sizes = {"size_bytes": member.size_bytes, "crc": member.crc}
    return Inflated(file, member.begin, member.stored_bytes, **sizes, name=member.name)


def read_members(file: CheckpointFile) -> dict[str, ZipMember]:
    """Read the directory and the local headers of an archive; return the members by name, folders left out."""
    with about(file, _HINT):
        directory, begin = _directory(file)
        entries = sorted(_entries(directory), key=lambda each: each.header)
        ends = [*(each.header for each in entries), begin][1:]
        members: dict[str, ZipMember] = {}
        for entry, data, end in zip(entries, _local_begins(file, entries), ends, strict=True):
            if data + entry.stored_bytes > end:
                raise FormatError(f"member {quoted(_name(entry))} of the archive overlaps with what lies behind it")
            name = _name(entry)
            if name in members:
                raise FormatError(f"the archive holds {quoted(name)} twice")
            members[name] = _member(entry, name, data)
        return {name: each for name, each in members.items() if not name.endswith("/")}


def _directory(file: CheckpointFile) -> tuple[bytes, int]:
    """Return the bytes of the directory, and its offset."""
    tail_begin = max(0, file.size_bytes - FIRST_TAIL_BYTES)
    tail = file.read(tail_begin, file.size_bytes)
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\5\6":
        head = file.read(0, min(8, file.size_bytes))
        if not head.startswith(ZIP_HEAD):
            raise not_of("zip archive", head, _HINT)
        raise FormatError("the archive has no end record, or a comment behind it")
    _, disk, first, here, count, size, begin, comment = _END.unpack_from(tail, at)
    end = tail_begin + at
    if tail[max(0, at - _LOCATOR.size) : at].startswith(b"PK\6\7"):
        end, here, count, size, begin = _end_64(tail, at - _LOCATOR.size, tail_begin)
    if disk or first or here != count or comment:
        raise FormatError("the archive is split, or has a comment")
    if begin + size != end:
        raise FormatError(f"the directory of the archive is said to end at byte {begin + size}, and ends at {end}")
    if size > MOST_DIRECTORY_BYTES or count * _ENTRY.size > size:
        raise FormatError(f"the directory of the archive has {size} bytes for {count} members")
    directory = tail[begin - tail_begin : begin - tail_begin + size] if begin >= tail_begin else file.read(begin, end)
    if _count(directory) != count:
        raise FormatError(f"the archive is said to have {count} members, and has {_count(directory)}")
    return directory, begin


def _end_64(tail: bytes, at: int, tail_begin: int) -> tuple[int, int, int, int, int]:
    """Read the zip64 end record before the locator; return its offset, entries, entries, bytes and begin."""
    _, disk, begin, disks = _LOCATOR.unpack_from(tail, at)
    record = begin - tail_begin
    if disk or disks != 1 or not 0 <= record == at - _END_64.size:
        raise FormatError("the zip64 end record of the archive is not before its locator")
    signature, size, _, _, number, first, here, count, bytes_, directory = _END_64.unpack_from(tail, record)
    if signature != b"PK\6\6" or size != _END_64.size - 12 or number or first:
        raise FormatError("the zip64 end record of the archive is malformed")
    return begin, here, count, bytes_, directory


def _count(directory: bytes) -> int:
    return sum(1 for _ in _entries(directory))


def _entries(directory: bytes) -> Iterator[_Entry]:
    at = 0
    while at < len(directory):
        if len(directory) - at < _ENTRY.size:
            raise FormatError("the directory of the archive ends inside of a member")
        fields: Any = _ENTRY.unpack_from(directory, at)
        signature, _, _, flags, method, _, _, crc, stored, size, name, extra, comment, disk, _, _, header = fields
        names, extras = at + _ENTRY.size, at + _ENTRY.size + name
        end = extras + extra + comment
        if signature != b"PK\1\2" or end > len(directory):
            raise FormatError("the directory of the archive is malformed")
        stored, size, header = _long(directory[extras : extras + extra], stored, size, header)
        if disk or flags & _ENCRYPTED or method not in (STORED, DEFLATED):
            what = "encrypted" if flags & _ENCRYPTED else f"compressed by method {method}, or on another disk"
            raise FormatError(f"member {_text(directory[names:extras])} of the archive is {what}")
        if method == STORED and stored != size:
            raise FormatError(f"stored member {_text(directory[names:extras])} of the archive has two sizes")
        yield _Entry(directory[names:extras], flags, method, crc, stored, size, header)
        at = end


def _long(extra: bytes, stored: int, size: int, header: int) -> tuple[int, int, int]:
    """Replace numbers that do not fit into 32 bits by the numbers of the zip64 field, in the order of the field."""
    numbers = [size, stored, header]
    if _NO_NUMBER not in numbers:
        return stored, size, header
    at = 0
    while at + 4 <= len(extra):
        kind, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        field = extra[at + 4 : at + 4 + length]
        if kind == _ZIP64:
            for index in [index for index, number in enumerate(numbers) if number == _NO_NUMBER]:
                if len(field) < 8:
                    raise FormatError("a zip64 field of the archive is too short")
                numbers[index], field = int.from_bytes(field[:8], "little"), field[8:]
            return numbers[1], numbers[0], numbers[2]
        at += 4 + length
    raise FormatError("a member of the archive has no zip64 field, and needs one")


def _local_begins(file: CheckpointFile, entries: Sequence[_Entry]) -> list[int]:
    """Return the offset of the first stored byte of each member; only the local header determines it."""
    lengths = [_LOCAL.size + len(each.name) for each in entries]
    ranges = [(each.header, each.header + length) for each, length in zip(entries, lengths, strict=True)]
    begins = []
    for entry, local in zip(entries, file.read_ranges(ranges), strict=True):
        signature, _, flags, method, *_, name, extra = _LOCAL.unpack_from(local)
        if signature != ZIP_HEAD or local[_LOCAL.size :] != entry.name or name != len(entry.name):
            raise FormatError(f"member {quoted(_name(entry))} of the archive is not where its directory says")
        if method != entry.method or flags & _ENCRYPTED:
            raise FormatError(f"member {quoted(_name(entry))} of the archive is described in two ways")
        begins.append(entry.header + _LOCAL.size + name + extra)
    return begins


def _text(name: bytes) -> str:
    return quoted(name.decode("utf-8", "backslashreplace"))


def _name(entry: _Entry) -> str:
    return entry.name.decode("utf-8", "backslashreplace")


def _member(entry: _Entry, name: str, begin: int) -> ZipMember:
    return ZipMember(name, begin, entry.stored_bytes, entry.size_bytes, entry.method == DEFLATED, entry.crc)
