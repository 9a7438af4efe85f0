"""All tensors of a checkpoint: which shard holds each, and where in it.

Refused here, before any weight byte is read: malformed headers, two shards that hold the same tensor, and an
index that names a tensor its shard does not hold.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from streamer.core.checkpoint.header_reads import read_headers
from streamer.core.collector import collector_paused
from streamer.core.engine.session import SourceObject
from streamer.core.errors import FormatError, ShardIndexError
from streamer.core.format.header import Header, TensorEntry
from streamer.core.options.settings import Settings

__all__ = ["Catalog", "ShardTensor", "check_index", "not_held", "read_catalog", "twin"]


class ShardTensor(NamedTuple):
    """One tensor and the number of the shard that holds it."""

    shard: int
    entry: TensorEntry


@dataclass(frozen=True)
class Catalog:
    """Every tensor of a checkpoint.

    Attributes:
        shards: The objects, pinned to the version whose header was read.
        tensors: Name to place, in shard order, then in file order.
        metadata: The ``__metadata__`` of all headers, later shards winning.
        headers: The bytes before the data of each shard, if `read_catalog` keeps them, else empty.
        overruled: Shards that hold a tensor of a name that the index takes from another shard: who reads such a file
            by itself gets the wrong one.
    """

    shards: Sequence[SourceObject]
    tensors: Mapping[str, ShardTensor]
    metadata: Mapping[str, str]
    headers: Sequence[bytes] = ()
    overruled: Set[int] = frozenset()

    def in_file_order(self, names: set[str] | None = None) -> Iterator[ShardTensor]:
        """Give the wanted tensors, or all, in the order their bytes lie in storage."""
        for name, shard_tensor in self.tensors.items():
            if names is None or name in names:
                yield shard_tensor


def read_catalog(
    shards: Sequence[SourceObject],
    settings: Settings,
    *,
    shard_of: Mapping[str, int] | None = None,
    keeps_headers: bool = False,
) -> Catalog:
    """Read and check the headers of all shards, and see that they fit together.

    Args:
        shards: In the order their tensors shall have.
        settings: How to read.
        shard_of: Tensor name to position in `shards`, from the index; None without one.
        keeps_headers: Fill in `Catalog.headers`, for digests of whole objects.

    Raises:
        HeaderError: a header is malformed.
        TruncatedError: a shard is shorter than its header says.
        ShardIndexError: the index names a tensor its shard does not hold.
        FormatError: two shards hold a tensor of the same name and no index decides.
        TransferTimeoutError: the load's own deadline is over.
    """
    headers, beginnings, pinned = read_headers(shards, settings)
    tensors: dict[str, ShardTensor] = {}
    metadata: dict[str, str] = {}
    overruled: set[int] = set()
    with collector_paused():
        for shard, header in enumerate(headers):
            metadata.update(header.metadata or {})
            taken = _add_entries(tensors, shard, header, pinned, shard_of)
            overruled.update([shard] if taken < len(header.entries) else [])
    if shard_of is not None:
        check_index(tensors, shard_of, pinned)
    kept = zip(beginnings, headers, strict=True) if keeps_headers else ()
    begun = [bytes(data[: header.data_begin]) for data, header in kept]
    return Catalog(pinned, tensors, metadata, begun, overruled)


def _add_entries(
    tensors: dict[str, ShardTensor],
    shard: int,
    header: Header,
    shards: Sequence[SourceObject],
    shard_of: Mapping[str, int] | None,
) -> int:
    """Add the tensors of a shard, and return how many the index leaves to it."""
    new = {entry.name: ShardTensor(shard, entry) for entry in header.entries}
    if shard_of is not None:  # the index takes some from another shard
        new = {name: tensor for name, tensor in new.items() if shard_of.get(name, shard) == shard}
    for name in (name for name in new if name in tensors):
        raise twin(name, shards[tensors[name].shard].uri, shards[shard].uri)
    tensors.update(new)
    return len(new)


def twin(name: str, first: str, second: str) -> FormatError:
    """Make the error for a tensor that two shards hold, by their URLs."""
    if first == second:
        return FormatError("the same shard is named twice", uri=first, hint="Name each file once")
    return FormatError(
        f"tensor {name[:80]!r} is in two shards: {first} and {second}",
        hint="Name one file, or the *.safetensors.index.json that says which shard counts",
    )


def check_index(tensors: Container[str], shard_of: Mapping[str, int], shards: Sequence[SourceObject]) -> None:
    """Check that each tensor of an index is in its shard.

    Args:
        tensors: Names of those that were found.
        shard_of: What the index says: the number of the shard, by name.
        shards: All of them.

    Raises:
        ShardIndexError: one is not.
    """
    for name, shard in shard_of.items():
        if name not in tensors:
            raise not_held(name, shards[shard].uri)


def not_held(name: str, uri: str) -> ShardIndexError:
    """Make the error for a tensor that is not in the shard that the index names, by its URL."""
    return ShardIndexError(
        f"the index promises tensor {name[:80]!r}, which this shard does not hold",
        uri=uri,
        hint="The index and its shards are of different checkpoints, or a shard is missing tensors",
    )
