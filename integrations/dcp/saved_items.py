"""The items of a DCP checkpoint: each is an archive of ``torch.save`` with a chunk of a tensor, or another value.

Large tensors are read directly into their targets. The offset of a tensor in its item is taken from the beginning of
one item of each kind. When an item has arrived, the bytes around the tensor are checked; if they differ from what was
expected, the whole item is read again and passed to ``torch.load``. Small items are read as a whole, and checked alike.

An item may be packed with zstd, which torch offers as an extension of ``FileSystemWriter``; the library is one that
torch itself uses, or Python's own from 3.14 on. Refuses any other transformation, and an item that unpacks to more
bytes than its tensor needs.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from streamer.core.checkpoint.report import LoadReport, joined_reports
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.errors import FormatError, TruncatedError
from streamer.core.format.dcp_metadata import DcpMetadata, SavedItem
from streamer.core.format.dtypes import DTYPES_BY_TORCH_NAME, TORCH_DTYPES, bits_of
from streamer.core.format.header_entries import TensorEntry
from streamer.core.format.torch_archive import Archives, SavedArchive, StoredTensor, begin_of_data
from streamer.core.quoting import quoted, size_text
from streamer.integrations.dcp.object_reads import Job, ObjectRange, Objects, Stored, block_of, read_jobs, rows_of
from streamer.integrations.dcp.planned_targets import PlannedTargets, loaded

ZSTD = "stream.zstd"
LIBRARIES = ("zstandard", "pyzstd", "compression.zstd")
MOST_OBJECT_BYTES = 1 << 30  # the limit of a value that is no tensor: the metadata do not contain its size


def check_transforms(name: str, transforms: tuple[str, ...], uri: str) -> None:
    """Check that the transformations of an item can be undone."""
    others = [each for each in transforms if not each.startswith(f"{ZSTD}/1")]
    if others:
        raise FormatError(
            f"item {quoted(name)} was saved with {quoted(', '.join(others))}, which this reader cannot undo",
            uri=uri,
            hint="Load it with torch's own FsspecReader, or save the checkpoint without extensions",
        )
    if transforms and _library() is None:
        raise FormatError(
            f"item {quoted(name)} is compressed with zstd, and no library for that is installed",
            uri=uri,
            hint="pip install zstandard",
        )


def decompressed(data: bytes, name: str, transforms: tuple[str, ...], most_bytes: int, label: str) -> bytes:
    """Undo the transformations that `check_transforms` has accepted."""
    for _ in transforms:
        try:
            data = _reader(data).read(most_bytes + 1)
        except Exception as error:  # each library has its own exception classes
            raise FormatError(
                f"item {quoted(name)} cannot be decompressed: {error}",
                uri=label,
                hint="Save or upload the checkpoint again",
            ) from error
        if len(data) > most_bytes:
            raise FormatError(
                f"item {quoted(name)} unpacks to more than {size_text(most_bytes)}",
                uri=label,
                hint="It is damaged: save or upload the checkpoint again",
            )
    return data


def _library() -> str | None:
    return next((name for name in LIBRARIES if _is_installed(name)), None)


def _is_installed(name: str) -> bool:
    package = name.partition(".")[0]
    return find_spec(package) is not None and (package == name or find_spec(name) is not None)


def _reader(data: bytes) -> Any:
    name = _library()
    assert name is not None  # `check_transforms` has checked it
    module, file = import_module(name), io.BytesIO(data)
    if name == "zstandard":
        return module.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return module.ZstdFile(file)


SMALL_BYTES = 256 << 10  # for smaller tensors, three ranges and the check cost more than one copy
MOST_AROUND_BYTES = 64 << 10  # the limit of an archive without its tensor; torch writes 1.6 KB
HEAD_BYTES = 4096  # the tensor begins within these bytes; torch pads to 64 bytes after some 700


def grouped(requests: Iterable[ReadItem], metadata: DcpMetadata, label: str) -> dict[SavedItem, list[ReadItem]]:
    """Group requests by the item that they need."""
    wanted: dict[SavedItem, list[ReadItem]] = {}
    for request in requests:
        index = request.storage_index
        saved = metadata.items.get((index.fqn, None if index.offset is None else tuple(index.offset)))
        if saved is None:
            raise FormatError(
                f"the metadata have no place for {quoted(index.fqn)}", uri=label, hint="Save the checkpoint again"
            )
        wanted.setdefault(saved, []).append(request)
    return wanted


def read_items(
    wanted: Mapping[SavedItem, list[ReadItem]],
    metadata: DcpMetadata,
    shards: Mapping[str, int],
    where: Objects,
    to: PlannedTargets,
) -> LoadReport:
    """Read items, and deliver their values."""
    sizes = _Sizes(metadata)
    items = [_Item.of(shards[saved.path], saved, requests, sizes) for saved, requests in wanted.items()]
    for item in items:
        _check(item, where)
    begins, where = _begins([item for item in items if item.is_large], where)
    how = _Context(where.label, to, Archives(), [])
    jobs: list[Job] = []
    for item in items:
        begin = begins.get(item.kind) if item.is_large else None
        jobs.append(_WholeItem(item, how) if begin is None else _TensorInItem(item, begin, how))
    report = read_jobs(jobs, where)
    if not how.again:
        return report
    return joined_reports(report, read_jobs([_WholeItem(item, how) for item in how.again], where), ())


class _Sizes:
    """Shapes of chunks by their offsets; cached, as a tensor may have thousands of chunks."""

    def __init__(self, metadata: DcpMetadata) -> None:
        self._metadata = metadata
        self._by_name: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}

    def of(self, name: str, offset: Sequence[int] | None) -> tuple[str, tuple[int, ...]] | None:
        """Return dtype and shape of a chunk; None for other values, and for tensors that ``torch.load`` must read."""
        tensor = self._metadata.entries.get(name)
        dtype = DTYPES_BY_TORCH_NAME.get(tensor.dtype) if tensor is not None else None
        if tensor is None or dtype is None or offset is None:
            return None
        if name not in self._by_name:
            self._by_name[name] = {chunk.offsets: chunk.sizes for chunk in tensor.chunks}
        shape = self._by_name[name].get(tuple(offset))
        return None if shape is None else (dtype, shape)


@dataclass(frozen=True)
class _Item:
    """One item, and the requests for it."""

    shard: int
    saved: SavedItem
    name: str
    requests: list[ReadItem]
    dtype: str | None  # as in safetensors; None for values, and for tensors that ``torch.load`` must read
    shape: tuple[int, ...]

    @classmethod
    def of(cls, shard: int, saved: SavedItem, requests: list[ReadItem], sizes: _Sizes) -> _Item:
        index = requests[0].storage_index
        is_bytes = any(request.type == LoadItemType.BYTE_IO for request in requests)
        dtype, shape = (None if is_bytes else sizes.of(index.fqn, index.offset)) or (None, ())
        return cls(shard, saved, index.fqn, requests, dtype, shape)

    @property
    def data_bytes(self) -> int:
        """Bytes of the tensor, without the archive around it."""
        return prod(self.shape) * bits_of(self.dtype) // 8 if self.dtype else 0

    @property
    def is_large(self) -> bool:
        """Whether the tensor is read apart from the archive around it."""
        around = self.saved.length - self.data_bytes
        return (
            not self.saved.transforms
            and self.data_bytes >= SMALL_BYTES
            and HEAD_BYTES // 8 <= around <= MOST_AROUND_BYTES
        )

    @property
    def kind(self) -> _Kind:
        """The key of items with the same layout; the alignment of members behind the tensor depends on its size."""
        return _Kind(self.saved.length - self.data_bytes, self.data_bytes % 64)

    def entry(self, begin: int, end: int, dtype: str = "U8", shape: Sequence[int] | None = None) -> TensorEntry:
        """Return an entry for a range of the item, as a tensor."""
        first, sizes = self.saved.offset, (end - begin,) if shape is None else tuple(shape)
        return TensorEntry(self.name, dtype, sizes, first + begin, first + end)


class _Kind(NamedTuple):
    around_bytes: int
    over_bytes: int


class _Context(NamedTuple):
    """Shared by the jobs of one read; `again` collects the items that must be read again."""

    label: str
    destination: PlannedTargets
    archives: Archives
    again: list[_Item]


class _WholeItem:
    """An item that is read as a whole."""

    def __init__(self, item: _Item, how: _Context) -> None:
        self._item, self._how = item, how
        self.parts = [ObjectRange(item.shard, item.entry(0, item.saved.length))]

    def finish(self, tensors: list[Any]) -> None:
        """Deliver the value; ``torch.load`` is called only if the bytes are not a plain tensor of the expected form."""
        data = _plain(tensors.pop(), self._item, self._how.label)
        value = _tensor_in(data, self._item, self._how.archives)
        for request in self._item.requests:
            if request.type == LoadItemType.BYTE_IO:
                self._how.destination.load_bytes(request, data.numpy().tobytes())
                continue
            value = loaded(data.numpy().data, self._item.name, self._how.label) if value is None else value
            _check_tensor(value, request, self._how.label)
            self._how.destination.fill(request, block_of(value, request))


class _TensorInItem:
    """Rows of a tensor, and the archive's bytes around the tensor to check that these were the tensor's bytes."""

    def __init__(self, item: _Item, begin: int, how: _Context) -> None:
        assert item.dtype is not None
        self._item, self._how = item, how
        end = begin + item.data_bytes
        self._stored = StoredTensor(item.dtype, item.shape, begin)
        dtype = getattr(torch, TORCH_DTYPES[item.dtype])
        stored = Stored(item.shard, item.entry(begin, end, item.dtype, item.shape), item.shape, dtype)
        self._rows = rows_of(stored, item.requests, how.destination)
        head, tail = item.entry(0, begin), item.entry(end, item.saved.length)
        self.parts = [ObjectRange(item.shard, head), *self._rows, ObjectRange(item.shard, tail)]

    def finish(self, tensors: list[Any]) -> None:
        """Deliver the rows, or add the item to those that are read again."""
        head, *rows, tail = tensors
        archive = SavedArchive(head.numpy().tobytes(), tail.numpy().tobytes(), self._item.saved.length)
        if self._how.archives.stored_tensor(archive) != self._stored:
            self._how.again.append(self._item)
            return
        for part, tensor in zip(self._rows, rows, strict=True):
            part.deliver(tensor, self._how.destination)


def _plain(data: torch.Tensor, item: _Item, label: str) -> torch.Tensor:
    """Return the bytes as ``torch.save`` wrote them, decompressed if necessary."""
    transforms = item.saved.transforms
    if not transforms:
        return data
    most_bytes = item.data_bytes + MOST_AROUND_BYTES if item.dtype else MOST_OBJECT_BYTES
    plain = decompressed(data.numpy().tobytes(), item.name, transforms, most_bytes, label)
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8) if plain else data[:0]


def _tensor_in(data: torch.Tensor, item: _Item, archives: Archives) -> torch.Tensor | None:
    """Return the tensor in the bytes of an item, without a copy; None if ``torch.load`` must read it."""
    if item.dtype is None or not item.data_bytes:
        return None
    begin = begin_of_data(data[:HEAD_BYTES].numpy().tobytes())
    if begin is None:
        return None
    end = begin + item.data_bytes
    archive = SavedArchive(data[:begin].numpy().tobytes(), data[end:].numpy().tobytes(), len(data))
    if archives.stored_tensor(archive) != StoredTensor(item.dtype, item.shape, begin):
        return None
    return data[begin:end].view(getattr(torch, TORCH_DTYPES[item.dtype])).view(item.shape)


def _check(item: _Item, where: Objects) -> None:
    object_, saved = where.objects[item.shard], item.saved
    check_transforms(item.name, saved.transforms, object_.uri)
    end = saved.offset + saved.length
    if end > object_.size_bytes:
        raise TruncatedError(
            f"item {quoted(item.name)} ends at byte {end}, the file has {object_.size_bytes}",
            uri=object_.uri,
            byte_range=(saved.offset, end),
            object_size=object_.size_bytes,
            hint="The file was cut short, or is of another checkpoint: upload or save it again",
        )


def _check_tensor(value: Any, request: ReadItem, label: str) -> None:
    name = quoted(request.storage_index.fqn)
    if not isinstance(value, torch.Tensor):
        raise FormatError(f"item {name} is a {type(value).__name__}, not a tensor", uri=label)
    ends = [begin + size for begin, size in zip(request.storage_offsets, request.lengths, strict=False)]
    if len(request.lengths) != value.dim() or any(end > size for end, size in zip(ends, value.shape, strict=True)):
        raise FormatError(f"item {name} has shape {list(value.shape)}, the metadata another one", uri=label)


def _begins(items: Sequence[_Item], where: Objects) -> tuple[dict[_Kind, int], Objects]:
    """Read the beginning of one item of each kind and of each file, to find where the tensors begin; pin the files."""
    by_kind, by_file = {item.kind: item for item in items}, {item.shard: item for item in items}
    samples = {(each.shard, each.saved.offset): each for each in (*by_kind.values(), *by_file.values())}
    if not samples:
        return {}, where
    ranges = [(shard, offset, offset + HEAD_BYTES) for shard, offset in sorted(samples)]
    heads, pinned = read_ranges(where.objects, ranges, where.settings, what="items")
    begins = {}
    for (shard, offset, _), head in zip(ranges, heads, strict=True):
        kind, begin = samples[shard, offset].kind, begin_of_data(bytes(head))
        if begin is not None and begin < kind.around_bytes:
            begins[kind] = begin
    return begins, replace(where, objects=pinned)
