"""Finds the shards of a checkpoint in one store; the user names a file, folder, index or glob.

One listing gives all sizes and versions of a folder. If listing is denied, an index or a file can still be loaded.
No name in a checkpoint can lead out of its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from streamer.core.checkpoint.completeness import check_whole, missing_shard, unfinished, without_second_copies
from streamer.core.checkpoint.half_pulled import refuse_half_pulled
from streamer.core.checkpoint.nothing_found import is_pattern, no_match, no_shard, nothing_there
from streamer.core.checkpoint.shard_choice import ShardChoice
from streamer.core.checkpoint.verification import Expected
from streamer.core.engine.session import SourceObject
from streamer.core.engine.small_reads import read_ranges
from streamer.core.errors import AccessDeniedError, FormatError, ObjectNotFoundError, StorageError
from streamer.core.format.index import ShardIndex, check_index_size, parse_index
from streamer.core.format.shard_names import INDEX_SUFFIX, MOST_SHARDS, SHARD_SUFFIX, USUAL_INDEX, USUAL_SHARD
from streamer.core.options.settings import Settings
from streamer.core.secrets.hidden_arguments import hidden_part
from streamer.core.secrets.redact import redact
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import MAX_SIZE_BYTES, ObjectInfo, Store

__all__ = ["Shards", "info_of", "infos_of_shards", "objects_of", "read_index"]
__all__ += ["shards_in", "shards_of", "source_object"]

Kind: TypeAlias = Literal["file", "folder", "index", "glob", "list"]


@dataclass(frozen=True)
class Shards:
    """Where a checkpoint lies.

    Attributes:
        label: The URI of the user, without secrets.
        objects: The shards, in order.
        shard_of: Tensor name to position in `objects`, from the index; None without one.
        checkpoint_of: For each shard, the number of the URI that names it, if there are several.
        infos: The store's description of each shard.
        index_path: The path of the index in the store; None without an index, and for a list of URIs.
        kind: What the user's URI names.
        expected: The digests or manifests that the shards are compared with, if they are verified.
        remarks: Remarks on these shards for the report.
    """

    label: str
    objects: list[SourceObject]
    shard_of: Mapping[str, int] | None
    infos: list[ObjectInfo]
    index_path: str | None = None
    kind: Kind = "file"
    expected: list[Expected] = field(default_factory=list)
    remarks: tuple[str, ...] = ()
    checkpoint_of: Sequence[int] = ()

    @property
    def choice(self) -> ShardChoice:
        """Which shard counts for a tensor that several shards hold."""
        return ShardChoice(self.shard_of, self.checkpoint_of)


def shards_in(store: Store, uri: str, settings: Settings, listed: Sequence[ObjectInfo] | None = None) -> Shards:
    """Find the shards of one checkpoint.

    Args:
        store: Opened for the URI.
        uri: A file, a folder, an index or a pattern.
        settings: How to read an index, and whether shards may be missing.
        listed: The entries of the folder of a file or an index, if the caller has just listed it.

    Raises:
        ObjectNotFoundError: the URI names nothing, or a shard that the index names is missing.
        ShardIndexError: the index is malformed or leaves its folder.
        FormatError: a folder holds several indexes.
        StorageError: and its kinds, from the storage.
    """
    label = redact(uri)
    root = hidden_part(store.root.rstrip("/") or store.root, uri)
    if is_pattern(root.rpartition("/")[2]):
        return _from_pattern(store, label, root, settings)
    return _from_name(store, label, root, settings, listed)


def _from_pattern(store: Store, label: str, root: str, settings: Settings) -> Shards:
    """Find the shards of a pattern. If it matches nothing, take it as a name: names may contain its characters."""
    folder, _, pattern = root.rpartition("/")
    listed = store.find(folder or "/")
    refuse_half_pulled(listed, label)
    brackets_alone = not {"*", "?"} & {*pattern}  # file names may contain brackets
    if brackets_alone and any(_name(info) == pattern for info in listed):
        return _from_name(store, label, root, settings)
    matches = [info for info in listed if fnmatchcase(_name(info), pattern) and _is_meant(info, pattern)]
    if matches:
        return shards_of(store, label, matches, "glob")
    try:
        return _from_name(store, label, root, settings)
    except ObjectNotFoundError as error:
        if is_pattern(folder):  # the error already says that a folder cannot be a pattern
            raise
        raise no_match(store, label, root, listed) from error


def _from_name(
    store: Store, label: str, root: str, settings: Settings, listed: Sequence[ObjectInfo] | None = None
) -> Shards:
    folder, _, name = root.rpartition("/")
    if not name.endswith((SHARD_SUFFIX, INDEX_SUFFIX)):
        return _from_folder(store, label, root, settings)
    found = [info for info in listed or () if info.path == root and info.size_bytes is not None]
    try:
        info = found[0] if found else info_of(store, label, root)
    except ObjectNotFoundError as error:
        with suppress(ObjectNotFoundError):  # the first error has the name as the user wrote it
            if any(SHARD_SUFFIX in _name(each) for each in _list_or_nothing(store, root)):
                return _from_folder(store, label, root, settings)  # a folder that is named like a file
        raise error
    if name.endswith(SHARD_SUFFIX):
        return shards_of(store, label, [info])
    return _from_index(store, label, info, _list_or_nothing(store, folder) if listed is None else [*listed], settings)


def info_of(store: Store, label: str, root: str) -> ObjectInfo:
    """Ask the store for one object; if it does not exist, the error says what exists in its place.

    Raises:
        StorageError: and its kinds, from the storage.
    """
    try:
        return store.info(root)
    except ObjectNotFoundError as error:
        explained = nothing_there(error, store, label, root)
        if explained is error:
            raise
        raise explained from error


def _from_folder(store: Store, label: str, root: str, settings: Settings) -> Shards:
    infos = _listed(store, root)
    refuse_half_pulled(infos, label)
    indexes = [info for info in infos if _name(info).endswith(SHARD_SUFFIX + INDEX_SUFFIX)]
    usual = [info for info in indexes if _name(info) == USUAL_INDEX]
    if len(indexes) > 1 and not usual:
        raise FormatError(
            f"the folder holds {len(indexes)} indexes: {', '.join(_name(info) for info in indexes[:5])}",
            uri=label,
            hint="Name the one to load",
        )
    if indexes:
        index = (usual or indexes)[0]
        # An entry that is listed without a size may not be a file.
        sized = store.info(index.path) if index.size_bytes is None else index
        return _from_index(store, label, sized, infos, settings)
    shards = [info for info in infos if _name(info).endswith(SHARD_SUFFIX) and _is_meant(info)]
    if shards:
        names, remarks = without_second_copies([_name(info) for info in shards])
        shards = [info for info in shards if _name(info) in names]
        remarks += check_whole(names, label, is_allowed=bool(settings.allow_missing_shards))
        remarks += unfinished([_name(info) for info in infos], label)
        return replace(shards_of(store, label, shards, "folder"), remarks=remarks)
    if infos:
        raise no_shard(store, label, root, infos)
    return shards_of(store, label, [info_of(store, label, root)])  # a file without the suffix, or an error


def _is_meant(info: ObjectInfo, pattern: str = "") -> bool:
    """Whether a file is not hidden, as in a shell: tools leave hidden drafts and notes (``._a.safetensors``)."""
    return not _name(info).startswith(".") or pattern.startswith(".")


def _listed(store: Store, root: str) -> list[ObjectInfo]:
    """List a folder; if listing is forbidden, look up the usual names of a checkpoint."""
    try:
        return store.find(root)
    except AccessDeniedError:
        for name in (USUAL_INDEX, USUAL_SHARD):
            with suppress(AccessDeniedError, ObjectNotFoundError):
                return [store.info(f"{root}/{name}")]
        raise


def _from_index(
    store: Store, label: str, index_info: ObjectInfo, listed: list[ObjectInfo], settings: Settings
) -> Shards:
    refuse_half_pulled(listed, label)
    index = read_index(store, index_info, settings)
    folder = index_info.path.rpartition("/")[0]
    infos = infos_of_shards(store, folder, index, listed, index_info.uri)
    position = {name: number for number, name in enumerate(index.shards)}
    shard_of = {tensor: position[shard] for tensor, shard in index.weight_map.items()}
    return Shards(label, objects_of(store, infos), shard_of, infos, index_info.path, "index")


def read_index(store: Store, index_info: ObjectInfo, settings: Settings) -> ShardIndex:
    """Read an index.

    Raises:
        ShardIndexError: it is malformed or leaves its folder.
        StorageError: and its kinds, from the storage.
    """
    index_object = source_object(store, index_info)
    check_index_size(index_object.size_bytes, uri=index_object.uri)
    content, _ = read_ranges([index_object], [(0, 0, index_object.size_bytes)], settings, what="indexes")
    return parse_index(content.pop(), uri=index_object.uri)  # pop: the bytes are freed after parsing


def infos_of_shards(
    store: Store, folder: str, index: ShardIndex, listed: list[ObjectInfo], uri: str
) -> list[ObjectInfo]:
    """Return the store's description of each shard of an index.

    Args:
        store: The store, for shards that are not listed or are listed without their size.
        folder: The folder of the index.
        index: The index that names the shards.
        listed: The listed entries of the folder.
        uri: The URI of the index.

    Raises:
        ObjectNotFoundError: a shard does not exist.
        StorageError: and its kinds, from the storage.
    """
    listed_by_name = {_name(info): info for info in listed}

    def info_of(shard: str) -> ObjectInfo:
        listed_info = listed_by_name.get(shard)
        if listed_info is not None and listed_info.size_bytes is not None:
            return listed_info
        try:
            return store.info(f"{folder}/{shard}" if folder else shard)
        except ObjectNotFoundError as error:
            raise missing_shard(shard, uri) from error

    return in_parallel(info_of, index.shards, role="info")


def _list_or_nothing(store: Store, folder: str) -> list[ObjectInfo]:
    """List a folder, or return nothing if listing is forbidden: it only saves one request for each shard."""
    try:
        return store.find(folder)
    except AccessDeniedError:
        return []


def shards_of(store: Store, label: str, infos: list[ObjectInfo], kind: Kind = "file") -> Shards:
    """Return the `Shards` of objects that the store has described.

    Raises:
        FormatError: there are more than a checkpoint may have.
        StorageError: as `source_object`.
    """
    if len(infos) > MOST_SHARDS:
        hint = "Name those to load in patterns of fewer, or join them to larger ones"
        raise FormatError(f"these are {len(infos)} shards, more than the {MOST_SHARDS} allowed", uri=label, hint=hint)
    # Some listings lack all or some sizes.
    sized = in_parallel(lambda info: store.info(info.path) if info.size_bytes is None else info, infos, role="info")
    return Shards(label, objects_of(store, sized), None, sized, kind=kind)


def objects_of(store: Store, infos: list[ObjectInfo]) -> list[SourceObject]:
    """Return the sources of objects; raises as `source_object`."""
    return in_parallel(lambda info: source_object(store, info), infos, role="source")


def source_object(store: Store, info: ObjectInfo) -> SourceObject:
    """Return the source of an object, from which its bytes are read.

    Raises:
        StorageError: its size is unknown or impossible; and its kinds, from the storage.
    """
    if info.size_bytes is None:
        raise StorageError(
            "the storage does not tell the size of this object", uri=info.uri, hint="Download it and load the copy"
        )
    if not 0 <= info.size_bytes <= MAX_SIZE_BYTES:
        raise StorageError(
            "the storage tells a size that no file can have", uri=info.uri, hint="Check the storage's endpoint"
        )
    server = getattr(store, "server", "")
    return SourceObject(info.uri, store.source(info), info.size_bytes, server=server, stored_version=info.version)


def _name(info: ObjectInfo) -> str:
    return info.path.rpartition("/")[2]
