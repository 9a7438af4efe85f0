"""All tensors of a checkpoint: which shard holds each tensor, and at which bytes.

Refuses, before any weight byte is read: malformed headers, two shards that hold the same tensor, and an index that
names a tensor its shard does not hold.

Small headers need one ranged read each. They are parsed as they arrive, while others are still being transferred: a
thousand small ones take 20 ms to parse. If several are malformed, the error is that of the first such shard, in
whatever order they were parsed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer.core.collector import collector_paused
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import FormatError, ShardIndexError, StreamerError
from streamer.core.format.header import LENGTH_BYTES, Header, header_size_bytes, parse_header
from streamer.core.format.header_entries import ENCRYPTION_METADATA, OWN_PREFIX, TensorEntry, differing_keys
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.shards.shards import NO_INDEX, ShardChoice, duplicate_tensor

if TYPE_CHECKING:
    from streamer.core.checkpoint.tensor_parts import Cut
    from streamer.core.encryption.sealed_files import SealedFile

HEADER_SHARE = 64  # the first read is at most this fraction of a shard; headers usually take less than a thousandth
LEAST_FIRST_BYTES = 16 << 10  # the entries of 120 tensors


class HeadersRead(NamedTuple):
    """The result of `read_headers`, by shard."""

    headers: list[Header]
    beginnings: list[memoryview]  # the bytes that were read, from byte 0 on: the header, and possibly bytes behind it
    shards: list[SourceObject]  # the shards, with the version that was read


def read_headers(shards: Sequence[SourceObject], settings: Settings) -> HeadersRead:
    """Read and check the headers of all shards. Duplicate tensor names are not checked here."""
    parser = _Parser(shards, settings)
    first = [(i, 0, _first_bytes(each.size_bytes, settings)) for i, each in enumerate(shards)]
    beginnings, pinned = read_ranges(
        shards, first, settings, what="headers", on_read=parser.parse, needed_bytes=_header_bytes
    )
    parser.check()
    longer = parser.unfinished()
    if longer:
        ends = [(n, len(beginnings[i]), parser.sizes[i]) for n, i in enumerate(longer)]
        rest, pinned_again = read_ranges([pinned[i] for i in longer], ends, settings, what="ends of headers")
        for i, tail, again in zip(longer, rest, pinned_again, strict=True):
            beginnings[i] = memoryview(b"".join((beginnings[i], tail)))
            pinned[i] = again
        parser.parse(longer, beginnings)
        parser.check()
    return HeadersRead([parser.headers[i] for i in range(len(shards))], beginnings, pinned)


def _header_bytes(beginning: memoryview) -> int:
    """Return the size of a header, as its length field says."""
    return LENGTH_BYTES + int.from_bytes(beginning[:LENGTH_BYTES], "little")


def _first_bytes(size_bytes: int, settings: Settings) -> int:
    """Return how many bytes to read first; 256 KiB of each 1 MB shard would read a quarter of the checkpoint."""
    most = max(size_bytes // HEADER_SHARE, LEAST_FIRST_BYTES)
    return min(size_bytes, settings.header_bytes, most)


class _Parser:
    """Parses the headers of shards.

    Attributes:
        headers: Shard number to header, for those that were parsed.
        sizes: Shard number to the size of its header in bytes, length field included.
    """

    def __init__(self, shards: Sequence[SourceObject], settings: Settings) -> None:
        self.headers: dict[int, Header] = {}
        self.sizes: dict[int, int] = {}
        self._errors: dict[int, StreamerError] = {}
        self._shards, self._settings = shards, settings

    def parse(self, indexes: Sequence[int], beginnings: Sequence[memoryview]) -> None:
        """Parse the headers of some shards; skip a header that was not read completely."""
        deadline = self._settings.deadline
        with collector_paused():
            for index in indexes:
                try:
                    self._parse(index, beginnings[index])
                except StreamerError as error:  # `check` raises it, because an earlier shard may still fail
                    self._errors[index] = error
                if deadline.is_over:
                    progress = f"{len(self.headers)} of {len(self._shards)} headers were read in time"
                    raise deadline.error(progress, self._shards[index].uri)

    def check(self) -> None:
        """Raise the error of the first shard that has one."""
        if self._errors:
            raise self._errors[min(self._errors)]

    def unfinished(self) -> list[int]:
        """Return the shards whose header was read only in part; call `check` first."""
        return sorted(self.sizes.keys() - self.headers.keys())

    def _parse(self, index: int, data: memoryview) -> None:
        shard, max_rank = self._shards[index], self._settings.max_rank
        size = self.sizes[index] = header_size_bytes(bytes(data[:LENGTH_BYTES]), shard.size_bytes, uri=shard.uri)
        if size <= len(data):
            self.headers[index] = parse_header(data, shard.size_bytes, uri=shard.uri, max_rank=max_rank)


SHARDING_INFO, SAVED_OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # names that torch writes


class ShardTensor(NamedTuple):
    """One tensor, or a part of one, and the number of the shard that holds it."""

    shard: int  # the number of the shard
    entry: TensorEntry  # the bytes that are read
    cut: Cut | None = None  # how the part is cut out of these bytes; None if they are handed out as they are
    layout: Any = None  # the DTensor that is made of the part (`parallel_plans.Layout`), or None

    @property
    def kept(self) -> TensorEntry:
        """The entry with the shape of the tensor that is handed out."""
        return self.entry if self.cut is None else self.entry._replace(shape=self.cut.kept)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that a part is cut out of."""
        return self.entry.shape if self.cut is None else self.cut.whole


class Catalog(NamedTuple):
    """Every tensor of a checkpoint."""

    shards: Sequence[SourceObject]  # the objects, pinned to the version whose header was read
    tensors: Mapping[str, ShardTensor]  # name to place, in shard order, then in file order
    metadata: Mapping[str, str]  # the ``__metadata__`` of all headers, later shards winning
    headers: Sequence[bytes] = ()  # the bytes before the data of each shard, if `read_catalog` keeps them, else empty
    # Shards that hold a tensor whose name the index takes from another shard. Reading such a file by itself gives the
    # wrong tensor.
    overruled: Set[int] = frozenset()
    header_metadata: Sequence[Mapping[str, str]] = ()  # the ``__metadata__`` of each header, decrypted with a key
    sealed: Mapping[int, SealedFile] = MappingProxyType({})  # the shards that are encrypted, by number
    # The CRC-32 of tensors, by name, if their file has it: an archive of NumPy
    checksums: Mapping[str, int] = MappingProxyType({})
    remarks: tuple[str, ...] = ()  # what the files hold that is not read
    differing: Set[str] = frozenset()  # keys of the metadata for which shards have different values

    @property
    def may_be_encrypted(self) -> bool:
        """Whether the headers have a name as only encrypted files have them."""
        metadata = (key for each in self.header_metadata for key in each)
        return any(name.startswith(OWN_PREFIX) for names in (metadata, self.tensors) for name in names)

    def in_file_order(self, names: set[str] | None = None) -> Iterator[ShardTensor]:
        """Yield the wanted tensors, or all, in the order of their bytes in storage."""
        for name, shard_tensor in self.tensors.items():
            if names is None or name in names:
                yield shard_tensor

    def is_read_whole(self, item: ShardTensor) -> bool:
        """Say whether an item to be read has all bytes of its tensor."""
        entry = self.tensors[item.entry.name].entry
        return (entry.begin, entry.end) == (item.entry.begin, item.entry.end)


def read_catalog(
    shards: Sequence[SourceObject],
    settings: Settings,
    *,
    choice: ShardChoice = NO_INDEX,
    keeps_headers: bool = False,
) -> Catalog:
    """Read and check the headers of all shards, and check that they fit together."""
    headers, beginnings, pinned = read_headers(shards, settings)
    tensors: dict[str, ShardTensor] = {}
    metadata: dict[str, str] = {}
    overruled: set[int] = set()
    with collector_paused():
        for shard, header in enumerate(headers):
            metadata.update(header.metadata or {})
            taken = _add_entries(tensors, shard, header, pinned, choice)
            overruled.update([shard] if taken < len(header.entries) else [])
    check_index(tensors, choice, pinned)
    kept = zip(beginnings, headers, strict=True) if keeps_headers else ()
    begun = [bytes(data[: header.data_begin]) for data, header in kept]
    of_headers = [header.metadata or {} for header in headers]
    by_nature = {ENCRYPTION_METADATA, SHARDING_INFO}  # each shard has parameters, and each rank parts, of its own
    differing = differing_keys(of_headers) - by_nature
    remarks = tuple(choice.remarks_on((name, each.shard) for name, each in tensors.items()))
    return Catalog(pinned, tensors, metadata, begun, overruled, of_headers, remarks=remarks, differing=differing)


def remarks_on_parts(catalog: Catalog) -> tuple[str, ...]:
    """Return a remark if torch's writer saved the tensors by rank: then each file may hold parts of them."""
    by_rank = [
        (shard, metadata[SHARDING_INFO])
        for shard, metadata in zip(catalog.shards, catalog.header_metadata, strict=True)
        if SHARDING_INFO in metadata
    ]
    for shard, text in by_rank:
        for name in _parts_behind(text):
            raise _part_of_rank(name, shard.uri)
    what = "torch's writer saved this by rank: if files of other ranks are missing, tensors are parts, or missing"
    return (what,) if by_rank else ()


def _parts_behind(sharding_info: str) -> Iterator[str]:
    """Yield the names of tensors that are parts behind the first element of their tensor."""
    try:
        read = json.loads(sharding_info)
    except (ValueError, RecursionError):
        return
    for name, part in read.items() if isinstance(read, dict) else ():
        offsets = part.get(SAVED_OFFSETS) if isinstance(part, dict) else None
        if isinstance(offsets, list) and any(type(each) is int and each > 0 for each in offsets):
            yield name


def _part_of_rank(name: str, uri: str) -> FormatError:
    return FormatError(
        f"tensor {quoted(name)} is the part of one rank, as torch's writer saves it with save_distributed=True",
        uri=uri,
        hint="Read the folder with dcp.load and streamer.dcp.StorageReader, which puts the parts together, or save it "
        "with enable_consolidation=True",
    )


def _add_entries(
    tensors: dict[str, ShardTensor],
    shard: int,
    header: Header,
    shards: Sequence[SourceObject],
    choice: ShardChoice,
) -> int:
    """Add the tensors of a shard, except those that the index takes from another shard; return how many were added."""
    new = {entry.name: ShardTensor(shard, entry) for entry in header.entries}
    if choice.shard_of is not None:
        new = {name: tensor for name, tensor in new.items() if not choice.overrules(name, shard)}
    for name in (name for name in new if name in tensors):
        if SHARDING_INFO in (header.metadata or {}):
            raise _part_of_rank(name, shards[shard].uri)
        raise duplicate_tensor(name, shards[tensors[name].shard].uri, shards[shard].uri)
    tensors.update(new)
    return len(new)


def check_index(tensors: Container[str], choice: ShardChoice, shards: Sequence[SourceObject]) -> None:
    """Check that each tensor of an index is in the catalog."""
    for name, shard in (choice.shard_of or {}).items():
        if name not in tensors:
            raise not_held(name, shards[shard].uri)


def not_held(name: str, uri: str) -> ShardIndexError:
    """Return the error for a tensor that is not in the shard that the index names; `uri` is the shard's."""
    return ShardIndexError(
        f"the index promises tensor {name[:80]!r}, which this shard does not hold",
        uri=uri,
        hint="The index and its shards are of different checkpoints, or a shard is missing tensors",
    )
