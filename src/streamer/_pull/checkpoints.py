"""Checks the checkpoints of a pull: every index has its shards, and every shard the bytes that its header names.

Guarantees: `streamer.load` would refuse the same files, with the same error. Files that the user left out do not count
as missing. Headers and indexes are read from the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streamer._pull.listing import Listing
from streamer.core.checkpoint.catalog import not_held
from streamer.core.format.header import LENGTH_BYTES, Header, header_size_bytes, parse_header
from streamer.core.format.index import check_index_size, parse_index
from streamer.core.format.shard_names import INDEX_SUFFIX, SHARD_SUFFIX, series_of
from streamer.core.options.settings import Settings
from streamer.core.shards.missing import check_whole, missing_shard
from streamer.core.store.sources import ObjectInfo

WEIGHTS_INDEX_SUFFIX = SHARD_SUFFIX + INDEX_SUFFIX


@dataclass(frozen=True)
class Copied:
    """The files that a pull has copied to the disk."""

    infos: Mapping[str, ObjectInfo]  # the storage's description of each file, by name
    there: Collection[str]  # names of all files that are in the storage, or on the disk, also from earlier pulls
    is_wanted: Callable[[str], bool]  # whether the user's patterns choose a name
    opened: Callable[[str], int]  # opens one of the files on the disk, and returns its descriptor
    label: str = ""  # the URL of the folder, without secrets


def check_series(listing: Listing, chosen: Collection[str], label: str) -> None:
    """Check that no numbered shard is missing in the storage, for folders without an index among the chosen files.

    A shard that the URI itself names is copied alone.
    """
    if listing.is_file:
        return
    listed = listing.files
    indexed = {_folder_of(name) for name in chosen if is_of(name, WEIGHTS_INDEX_SUFFIX)}
    for folder in sorted({_folder_of(name) for name in chosen} - indexed):
        names = {name: name[len(folder) :] for name in listed if _folder_of(name) == folder}
        wanted = {series_of(names[name]) for name in chosen if name in names} - {None}
        check_whole([name for name in names.values() if series_of(name) in wanted], f"{label}/{folder}".rstrip("/"))


def check_checkpoints(copied: Copied, settings: Settings) -> None:
    """Check all headers, and all indexes against their shards."""
    tensors = {
        name: {entry.name for entry in header_of(copied.opened(name), info.uri, settings).entries}
        for name, info in copied.infos.items()
        if is_of(name, SHARD_SUFFIX)
    }
    for name in copied.infos:
        if is_of(name, WEIGHTS_INDEX_SUFFIX):
            _check_index(name, copied, tensors)


def header_of(descriptor: int, uri: str, settings: Settings) -> Header:
    """Read the header of a file, and close its descriptor; raises as `check_checkpoints`."""
    with open(descriptor, "rb", buffering=0) as file:
        size_bytes = os.fstat(descriptor).st_size
        size = header_size_bytes(os.pread(descriptor, LENGTH_BYTES, 0), size_bytes, uri=uri)
        return parse_header(os.pread(file.fileno(), size, 0), size_bytes, uri=uri, max_rank=settings.max_rank)


def _check_index(name: str, copied: Copied, tensors: Mapping[str, set[str]]) -> None:
    uri = copied.infos[name].uri
    with open(copied.opened(name), "rb", buffering=0) as file:
        check_index_size(os.fstat(file.fileno()).st_size, uri=uri)
        index = parse_index(file.readall(), uri=uri)
    path_of = {shard: _folder_of(name) + shard for shard in index.shards}
    for shard, path in path_of.items():
        if path not in copied.there and copied.is_wanted(path):
            raise missing_shard(shard, uri)
    for tensor, shard in index.weight_map.items():
        if tensor not in tensors.get(path_of[shard], {tensor}):  # a shard that was left out may hold it
            raise not_held(tensor, copied.infos[path_of[shard]].uri)


def is_of(name: str, suffix: str) -> bool:
    """Say whether a file is not hidden, and has the suffix of a shard or an index."""
    return name.endswith(suffix) and not name.rpartition("/")[2].startswith(".")


def _folder_of(name: str) -> str:
    """Return the folder of a file, with a slash at the end; empty for the folder that is pulled."""
    return name[: name.rfind("/") + 1]
