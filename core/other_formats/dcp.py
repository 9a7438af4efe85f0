"""Checkpoints of torch.distributed.checkpoint (DCP): a folder with ``.metadata`` and ``*.distcp``.

A tensor that several ranks saved in chunks is loaded whole: the chunks are joined while they are read. Guarantees: the
``.metadata`` and the pickle of each chunk are read as data; a chunk that is not stored as one plain range is read as
`torch_zip` reads it; the chunks of a tensor cover it exactly once. Entries that are no tensors are not read: the
metadata lists their names under `OBJECTS_KEY`. If such an object holds tensors, this is remarked.

Refuses with FormatError: compressed items, which ``streamer.dcp.StorageReader`` reads, chunks that are missing, and a
checkpoint all of whose entries are objects: a dict that was saved without being flattened is one object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamer.core.errors import FormatError, TruncatedError
from streamer.core.format.dcp_metadata import DcpMetadata, SavedItem, SavedTensor, parse_dcp_metadata
from streamer.core.format.dtypes import DTYPES_BY_TORCH_NAME, bits_of
from streamer.core.format.torch_archive import Archives, SavedArchive, StoredTensor, begin_of_data
from streamer.core.other_formats.interface import CheckpointFile, CheckpointIndex, Format, Reader, TensorPlace, about
from streamer.core.other_formats.torch_zip import TorchZip
from streamer.core.quoting import names_text, quoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import hookimpl

OBJECTS_KEY = "streamer.dcp_objects"
METADATA = ".metadata"
MOST_AROUND_BYTES = 64 << 10  # in an item beside its tensor; torch writes 1.6 KB
MOST_BATCH_BYTES = 16 << 20  # of the beginnings and ends of items that are read at a time
MOST_CHUNKS = 4096  # per tensor that is cut along several dimensions: its chunks are compared with each other
_STORAGE = re.compile(rb"PK\x01\x02.{42}[^/]{1,255}/data/[0-9]", re.DOTALL)  # in the directory of torch.save's archive
_HINT_FOR_OBJECTS = "Load them with dcp.load and streamer.dcp.StorageReader, into a state of the same form"
_HINT = "Fetch all files of the folder; or save the checkpoint again"


class Chunk(Protocol):
    """A block of a tensor."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of its first element in the tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""


class _Item(NamedTuple):
    """A chunk of a tensor: the item that holds it, its offsets in the tensor and its shape."""

    name: str
    saved: SavedItem
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the chunk, without the archive around it."""
        return prod(self.shape) * bits_of(self.dtype) // 8


class Dcp:
    """The format; see the module's docstring."""

    name = "DCP"
    suffixes: tuple[str, ...] = (METADATA, ".distcp")
    part_suffixes: tuple[str, ...] = (".distcp",)

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        """Choose the metadata and all files with items; see `Format.files_of`."""
        return [METADATA, *sorted(name for name in names if name != METADATA)] if METADATA in names else []

    def is_format(self, head: bytes) -> bool:
        """Recognise the metadata; see `Format.is_format`."""
        return head.startswith(b"\x80") and b"torch.distributed.checkpoint.metadata" in head

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        """Find the tensors; see `Format.read_index`."""
        by_name = {file.name: file for file in files}
        first = by_name.get(METADATA)
        if first is None or len(files) < 2:
            raise FormatError("this is one file of a checkpoint of DCP", uri=files[0].uri, hint="Name its folder")
        with about(first, _HINT):
            metadata = parse_dcp_metadata(first.read(0, first.size_bytes), uri=first.uri)
            entries = {name: entry for name, entry in metadata.entries.items() if entry is not None}
            items = {name: _items(name, entry, metadata) for name, entry in entries.items()}
            places = _placed([each for of_tensor in items.values() for each in of_tensor], by_name)
            tensors = [_whole(name, entries[name], of_tensor, places, first) for name, of_tensor in items.items()]
            others = sorted(name for name, entry in metadata.entries.items() if entry is None)
            if not others:
                return CheckpointIndex(tensors)
            inside = _with_tensors(others, metadata, by_name)
            what = f"objects with tensors inside, which are not read: {names_text(inside)}"
            if not tensors:
                what = f"this checkpoint holds no tensors, but {what if inside else f'objects: {names_text(others)}'}"
                raise FormatError(what, hint=_HINT_FOR_OBJECTS)
            remarks = [f"{what}. {_HINT_FOR_OBJECTS}"] if inside else []
            return CheckpointIndex(tensors, {OBJECTS_KEY: json.dumps(others)}, remarks)


@hookimpl
def streamer_format() -> Format:
    """Return the format."""
    return Dcp()


def _items(name: str, entry: SavedTensor, metadata: DcpMetadata) -> list[_Item]:
    dtype = DTYPES_BY_TORCH_NAME.get(entry.dtype)
    if dtype is None or entry.layout != "torch.strided":
        raise FormatError(f"tensor {quoted(name)} of {entry.dtype} and layout {entry.layout} is not read")
    items = []
    for chunk in entry.chunks:
        saved = metadata.items.get((name, chunk.offsets))
        if saved is None:
            raise FormatError(f"the metadata name no place of a chunk of {quoted(name)}")
        if saved.transforms:
            hint = "streamer.dcp.StorageReader reads it, with dcp.load"
            raise FormatError(f"tensor {quoted(name)} is saved with {', '.join(saved.transforms)[:80]}", hint=hint)
        items.append(_Item(name, saved, chunk.offsets, chunk.sizes, dtype))
    _check_cover(name, entry.size, items)
    return items


def _with_tensors(names: Sequence[str], metadata: DcpMetadata, files: Mapping[str, CheckpointFile]) -> list[str]:
    """Return the names of objects whose archives have bytes of tensors; compressed ones are not looked into."""
    by_file: dict[str, list[tuple[str, SavedItem]]] = {}
    for name in names:
        saved = metadata.items.get((name, None))
        file = files.get(saved.path) if saved is not None else None
        if saved is not None and file is not None and saved.offset + saved.length <= file.size_bytes:
            by_file.setdefault(saved.path, []).extend([(name, saved)] if not saved.transforms else [])
    most = MOST_BATCH_BYTES // MOST_AROUND_BYTES
    batches = [(files[path], of[at : at + most]) for path, of in by_file.items() for at in range(0, len(of), most)]

    def look(file: CheckpointFile, objects: list[tuple[str, SavedItem]]) -> list[str]:
        ends = [(saved.offset + saved.length, min(saved.length, MOST_AROUND_BYTES)) for _, saved in objects]
        tails = file.read_ranges([(end - size_bytes, end) for end, size_bytes in ends])
        return [name for (name, _), tail in zip(objects, tails, strict=True) if _STORAGE.search(tail)]

    found = in_parallel(lambda each: look(*each), batches, role="index") if batches else []
    return [name for of_batch in found for name in of_batch]


def _check_cover(name: str, size: tuple[int, ...], items: Sequence[_Item]) -> None:
    """Check that the chunks lie in the tensor, do not overlap, and together are as large as it."""
    covered = sum(prod(each.shape) for each in items)
    inside = all(o + s <= n for each in items for o, s, n in zip(each.offsets, each.shape, size, strict=True))
    full = [each for each in items if prod(each.shape)]
    if not inside or covered != prod(size) or chunks_overlap(full, size):
        raise FormatError(f"the chunks of tensor {quoted(name)} do not cover it exactly once")


def chunks_overlap(items: Sequence[Chunk], size: tuple[int, ...]) -> bool:
    """Say whether two chunks of a tensor of this size, none of them empty, have an element in common."""
    if all(each.shape[1:] == size[1:] for each in items):  # rows: the usual case, with thousands of chunks
        ends = sorted((each.offsets[:1], each.shape[:1]) for each in items)
        pairs = pairwise(ends)
        return any(begin[0] + rows[0] > after[0] for (begin, rows), (after, _) in pairs if begin) or (
            not size and len(items) > 1
        )
    if len(items) > MOST_CHUNKS:
        raise FormatError(f"a tensor has {len(items)} chunks")
    begins = np.array([each.offsets for each in items])
    ends_of = begins + np.array([each.shape for each in items])
    return any(
        bool(((begins[:index] < ends_of[index]) & (begins[index] < ends_of[:index])).all(axis=1).any())
        for index in range(1, len(items))
    )


class _Place(NamedTuple):
    """The bytes of a chunk: in a file, or in a reader of its own."""

    file: CheckpointFile
    begin: int
    reader: Reader | None = None


def _placed(items: Sequence[_Item], files: Mapping[str, CheckpointFile]) -> dict[SavedItem, _Place]:
    """Find the bytes of every chunk in its archive; most archives differ only in the bytes of the tensor."""
    by_file: dict[str, list[_Item]] = {}
    for item in items:
        if item.size_bytes:
            by_file.setdefault(item.saved.path, []).append(item)
    for path in by_file:
        if path not in files:
            raise FormatError(f"the metadata name the file {quoted(path)}, which does not exist")
    batches = [(files[path], batch) for path, of_file in by_file.items() for batch in _batches(files[path], of_file)]
    archives = Archives()
    found = in_parallel(lambda each: _places_of(*each, archives), batches, role="index") if batches else []
    return {saved: place for places in found for saved, place in places.items()}


def _batches(file: CheckpointFile, items: Sequence[_Item]) -> list[list[_Item]]:
    batches: list[list[_Item]] = [[]]
    size_bytes = 0
    for item in items:
        if item.saved.offset + item.saved.length > file.size_bytes:
            what = f"an item ends at byte {item.saved.offset + item.saved.length}, the file has {file.size_bytes}"
            raise TruncatedError(what, uri=file.uri, hint=_HINT)
        size_bytes += 2 * _around(item)
        if size_bytes > MOST_BATCH_BYTES:
            batches.append([])
            size_bytes = 2 * _around(item)
        batches[-1].append(item)
    return batches


def _around(item: _Item) -> int:
    """Return the size of an archive without its tensor; 0 if it cannot be the archive of a plain tensor."""
    around = item.saved.length - item.size_bytes
    return around if 0 < around <= MOST_AROUND_BYTES else 0


def _places_of(file: CheckpointFile, items: Sequence[_Item], archives: Archives) -> dict[SavedItem, _Place]:
    ranges = []
    for item in items:
        begin, end = item.saved.offset, item.saved.offset + item.saved.length
        ranges += [(begin, begin + _around(item)), (end - _around(item), end)]
    read = iter(file.read_ranges(ranges))
    places = {}
    for item, head, tail in zip(items, read, read, strict=False):
        place = _plain(file, item, head, tail, archives)
        places[item.saved] = place or _strange(file, item)
    return places


def _plain(file: CheckpointFile, item: _Item, head: bytes, tail: bytes, archives: Archives) -> _Place | None:
    begin = begin_of_data(head)
    if begin is None or not head:
        return None
    archive = SavedArchive(head[:begin], tail[begin - len(head) :], item.saved.length)
    expected = StoredTensor(item.dtype, item.shape, begin)
    return _Place(file, item.saved.offset + begin) if archives.stored_tensor(archive) == expected else None


def _strange(file: CheckpointFile, item: _Item) -> _Place:
    """Find the bytes of a tensor that is strided, or shares a larger storage."""
    part = _Part(file, item.saved.offset, item.saved.length)
    try:
        tensors = TorchZip().read_index([part]).tensors
    except FormatError as error:
        error.message = f"an item of tensor {quoted(item.name)}: {error.message}"
        raise
    if len(tensors) != 1 or (tensors[0].dtype, tensors[0].shape) != (item.dtype, item.shape):
        what = f"an item of tensor {quoted(item.name)} holds another tensor than the metadata say"
        raise FormatError(what, uri=file.uri)
    found = tensors[0]
    return _Place(file, found.begin + (item.saved.offset if found.reader is None else 0), found.reader)


class _Part(CheckpointFile):
    """A range of a file, as a file."""

    def __init__(self, file: CheckpointFile, begin: int, size_bytes: int) -> None:
        super().__init__(file.name, file.uri, size_bytes)
        self._file, self._begin = file, begin

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer."""
        self._file.read_into(buffer, self._begin + offset)

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._file.read_ranges([(self._begin + begin, self._begin + end) for begin, end in ranges])


def _whole(
    name: str, entry: SavedTensor, items: Sequence[_Item], places: Mapping[SavedItem, _Place], first: CheckpointFile
) -> TensorPlace:
    full = [each for each in items if each.size_bytes]
    dtype = DTYPES_BY_TORCH_NAME[entry.dtype]
    if not full:
        return TensorPlace(name, dtype, entry.size, first)
    place = places[full[0].saved]
    if len(full) == 1:
        return TensorPlace(name, dtype, entry.size, place.file, place.begin, place.reader)
    reader = _Assembled(entry.size, bits_of(dtype) // 8, [(each, places[each.saved]) for each in full])
    return TensorPlace(name, dtype, entry.size, place.file, 0, reader)


class _Assembled:
    """A tensor that lies in several chunks.

    A range of its bytes consists of the end of a row, whole rows, and the beginning of a row. A row is divided in the
    same way along the next dimension. In each chunk, whole rows are one range of bytes, so only needed bytes are read.
    """

    def __init__(self, size: Sequence[int], item_bytes: int, chunks: Sequence[tuple[_Item, _Place]]) -> None:
        self._size, self._item_bytes, self._chunks = tuple(size), item_bytes, chunks
        self.size_bytes = prod(size) * item_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        first, end = offset // self._item_bytes, -(-(offset + buffer.nbytes) // self._item_bytes)
        elements: Any = np.empty((end - first) * self._item_bytes, np.uint8)
        self._fill(elements, (), first, end)
        skipped = offset - first * self._item_bytes
        buffer.cast("B")[:] = memoryview(elements)[skipped : skipped + buffer.nbytes]

    def _fill(self, target: Any, index: tuple[int, ...], first: int, end: int) -> None:
        """Fill the elements from `first` to `end` of the part of the tensor at an index of its leading dimensions."""
        dimension = len(index)
        row = prod(self._size[dimension + 1 :])
        whole_first, whole_end = -(-first // row), end // row
        if whole_first > whole_end:  # in the middle of one row
            self._fill(target, (*index, first // row), first % row, end - first // row * row)
            return
        ends = [first, whole_first * row, whole_end * row, end]
        before, rows, after = (
            target[(a - first) * self._item_bytes : (b - first) * self._item_bytes] for a, b in pairwise(ends)
        )
        if len(before):
            self._fill(before, (*index, whole_first - 1), first % row, row)
        if len(rows):
            self._fill_rows(rows, index, whole_first, whole_end)
        if len(after):
            self._fill(after, (*index, whole_end), 0, end % row)

    def _fill_rows(self, target: Any, index: tuple[int, ...], first: int, end: int) -> None:
        dimension, item_bytes = len(index), self._item_bytes
        window = target.view(np.dtype((np.void, item_bytes))).reshape(end - first, *self._size[dimension + 1 :])
        for item, place in self._chunks:
            inner = [at - begin for at, begin in zip(index, item.offsets, strict=False)]
            begin = max(first, item.offsets[dimension])
            until = min(end, item.offsets[dimension] + item.shape[dimension])
            if begin >= until or any(not 0 <= at < size for at, size in zip(inner, item.shape, strict=False)):
                continue
            rest = item.shape[dimension + 1 :]
            skipped = sum(at * prod(item.shape[d + 1 :]) for d, at in enumerate(inner))
            skipped += (begin - item.offsets[dimension]) * prod(rest)
            piece: Any = np.empty((until - begin) * prod(rest) * item_bytes, np.uint8)
            (place.reader or place.file).read_into(memoryview(piece), place.begin + skipped * item_bytes)
            box = [slice(o, o + n) for o, n in zip(item.offsets[dimension + 1 :], rest, strict=True)]
            where = (slice(begin - first, until - first), *box)
            window[where] = piece.view(window.dtype).reshape(-1, *rest)
