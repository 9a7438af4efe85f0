"""The shards of a checkpoint, as a store describes them: objects with sizes, versions and sources.

Guarantees: no byte is read under a young version (`core/store/versions.py`), which other bytes may have, too: reading
waits until the versions of all objects are two seconds old. If several shards hold a tensor, the one that the index of
their checkpoint names counts.

Refuses objects without a size, and checkpoints of more than `MOST_SHARDS` shards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import ChangedError, FormatError, ObjectNotFoundError, StorageError
from streamer.core.format.shard_names import MOST_SHARDS, SHARD_SUFFIX
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import counted, names_text
from streamer.core.shards.missing import missing_shard, nothing_there
from streamer.core.store.identities import identity_of
from streamer.core.store.names import name_in, path_in, whole_name
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import MAX_SIZE_BYTES, ObjectInfo, Store
from streamer.core.store.versions import YOUNG_S, is_same_version

if TYPE_CHECKING:
    from streamer.core.format.index import ShardIndex
    from streamer.core.format.manifest import Manifest
    from streamer.core.other_formats.interface import Format
    from streamer.core.store.digests import NoDigest, ObjectDigest


class ShardChoice(NamedTuple):
    """The indexes of one checkpoint, or of several that are loaded together.

    An index does not decide about shards of another checkpoint: a tensor in both checkpoints is refused.
    """

    shard_of: Mapping[str, int] | None = None  # tensor name to the number of its shard; None without an index
    checkpoint_of: Sequence[int] = ()  # for each shard, the number of its checkpoint; empty if there is only one

    def overrules(self, name: str, shard: int) -> bool:
        """Say whether the index takes this tensor from another shard of the same checkpoint."""
        chosen = (self.shard_of or {}).get(name, shard)
        if chosen == shard:
            return False
        return not self.checkpoint_of or self.checkpoint_of[chosen] == self.checkpoint_of[shard]

    def remarks_on(self, tensors: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Return a remark if a checkpoint with an index has tensors that its index does not name."""
        if self.shard_of is None:
            return ()
        indexed = {self.checkpoint_of[shard] for shard in self.shard_of.values()} if self.checkpoint_of else {0}
        more = [
            name
            for name, shard in tensors
            if name not in self.shard_of and (not self.checkpoint_of or self.checkpoint_of[shard] in indexed)
        ]
        return (f"the index does not name {names_text(more, 3)}, which its shards hold",) if more else ()


NO_INDEX = ShardChoice()


def duplicate_tensor(name: str, first: str, second: str) -> FormatError:
    """Return the error for a tensor that two shards hold; `first` and `second` are their URLs."""
    if first == second:
        return FormatError("the same shard is named twice", uri=first, hint="Name each file once")
    from streamer.core.encryption.sealed_files import TAGS_TENSOR  # noqa: PLC0415 (as needed)

    if name.startswith(f"{TAGS_TENSOR}-"):
        hint = "Load each of them with a call of its own"
        return FormatError(f"{first} and {second} are of two encrypted checkpoints", hint=hint)
    return FormatError(
        f"tensor {name[:80]!r} is in two shards: {first} and {second}",
        hint="Name one file, or the *.index.json that says which shard counts",
    )


_log = OwnLogger()

Kind: TypeAlias = Literal["file", "folder", "index", "glob", "list"]


class ManifestOfShard(NamedTuple):
    """A manifest, and the name of one shard in it."""

    manifest: Manifest
    uri: str
    shard: str


# The expected digest of one shard, or the reason why there is none.
Expected: TypeAlias = "ObjectDigest | NoDigest | ManifestOfShard"


class Shards(NamedTuple):
    """The shards of a checkpoint, and where they are."""

    label: str  # the URI of the user, without secrets
    objects: list[SourceObject]  # the shards, in order
    shard_of: Mapping[str, int] | None  # tensor name to position in `objects`, from the index; None without one
    infos: list[ObjectInfo]  # the store's description of each shard
    index_path: str | None = None  # the path of the index in the store; None without an index, and for a list of URIs
    kind: Kind = "file"  # what the user's URI names
    expected: Sequence[Expected] = ()  # what the shards are compared with, if they are verified
    remarks: tuple[str, ...] = ()  # remarks on these shards for the report
    checkpoint_of: Sequence[int] = ()  # for each shard, the number of the URI that names it, if there are several
    format: Format | None = None  # the format of the shards; None for safetensors

    @property
    def choice(self) -> ShardChoice:
        """Which shard counts for a tensor that several shards hold."""
        return ShardChoice(self.shard_of, self.checkpoint_of)


def info_of(store: Store, label: str, root: str) -> ObjectInfo:
    """Request the description of one object; if there is no such object, the error says what exists instead."""
    try:
        return store.info(root)
    except ObjectNotFoundError as error:
        explained = nothing_there(error, store, label, root)
        if explained is error:
            raise
        raise explained from error


def read_index(
    store: Store, index_info: ObjectInfo, settings: Settings, suffixes: tuple[str, ...] = (SHARD_SUFFIX,)
) -> ShardIndex:
    """Read an index of shards whose names end with one of these suffixes."""
    index_object = source_object(store, index_info)
    from streamer.core.format.index import check_index_size, parse_index  # noqa: PLC0415 (as needed)

    check_index_size(index_object.size_bytes, uri=index_object.uri)
    content, _ = read_ranges([index_object], [(0, 0, index_object.size_bytes)], settings, what="indexes")
    return parse_index(content.pop(), uri=index_object.uri, suffixes=suffixes)  # pop: the bytes are freed after parsing


def infos_of_shards(
    store: Store, folder: str, index: ShardIndex, listed: list[ObjectInfo], uri: str
) -> list[ObjectInfo]:
    """Return the store's description of each shard of an index."""
    listed_by_name = {name_of(info): info for info in listed}

    def info_of(shard: str) -> ObjectInfo:
        listed_info = listed_by_name.get(shard)
        if listed_info is not None and listed_info.size_bytes is not None:
            return listed_info
        try:
            return store.info(path_in(folder, shard))
        except ObjectNotFoundError as error:
            raise missing_shard(shard, uri) from error

    return settled(store, in_parallel(info_of, index.shards, role="info"))


def shards_of(store: Store, label: str, infos: list[ObjectInfo], kind: Kind = "file") -> Shards:
    """Return the `Shards` of objects that the store has described."""
    if len(infos) > MOST_SHARDS:
        hint = "Load fewer of them with a pattern, or join them into larger shards"
        raise FormatError(f"these are {len(infos)} shards, more than the {MOST_SHARDS} allowed", uri=label, hint=hint)
    infos = settled(store, sized(store, infos))
    return Shards(label, objects_of(store, infos), None, infos, kind=kind)


def objects_of(store: Store, infos: list[ObjectInfo]) -> list[SourceObject]:
    """Return the sources of objects; raises as `source_object`."""
    return in_parallel(lambda info: source_object(store, info), infos, role="source")


def sized(store: Store, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Look up the sizes that a listing lacks."""
    lacking = [info.path for info in infos if info.size_bytes is None]
    found = iter(in_parallel(store.info, lacking, role="info"))
    return [next(found) if info.size_bytes is None else info for info in infos]


def settled(store: Store, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return the descriptions of objects that are about to be read, each with a version that no other bytes can get.

    Versions that are young are looked up, and looked up again once they are two seconds old.
    """
    if all(info.is_settled or info.is_weak for info in infos):
        return [*infos]

    def look(info: ObjectInfo) -> ObjectInfo:
        if info.is_settled or info.is_weak:
            return info
        is_due = info.settled_at <= time.monotonic()
        found = store.info(info.path)
        return replace(found, settled_at=0.0) if is_due and info.is_same_as(found) else found

    found = in_parallel(look, infos, role="look")
    due = max((each.settled_at for each in found if each.settled_at < math.inf), default=0.0)
    if due == 0:
        return found
    _log.info("the latest of %s was changed within the last seconds: waiting", counted(len(infos), "file"))
    time.sleep(max(0.0, min(due - time.monotonic(), YOUNG_S)))
    again = in_parallel(look, found, role="look")
    for before, after in zip(found, again, strict=True):
        check_unchanged(before, after)
    return again


def check_unchanged(before: ObjectInfo, after: ObjectInfo | None) -> None:
    """Compare two descriptions of an object; None if there is no such object any more."""
    if not before.is_same_as(after):
        hint = "Run it again when nobody writes there"
        what = "was removed while it was read"
        if after is not None:
            is_other_version = not is_same_version(before.version, after.version)
            name, facts = ("version", "version") if is_other_version else ("size", "size_bytes")
            what = f"changed while it was read: {name} {getattr(before, facts)} became {getattr(after, facts)}"
        raise ChangedError(f"the file {what}", uri=before.uri, hint=hint)


def source_object(store: Store, info: ObjectInfo) -> SourceObject:
    """Return the source of an object, from which its bytes are read."""
    (info,) = settled(store, sized(store, [info]))
    size_bytes = size_of(info)
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise StorageError(
            "the storage reports a size that no file can have", uri=info.uri, hint="Check the storage's endpoint"
        )
    source = store.source(info)
    return SourceObject(
        info.uri,
        source,
        size_bytes,
        server=getattr(store, "server", ""),
        stored_version=info.version,
        is_settled=info.is_settled,
        identity=identity_of(store, info, source),
        name=whole_name(info.uri, info.path),
    )


def size_of(info: ObjectInfo) -> int:
    """Return the size of an object that was looked up."""
    if info.size_bytes is None:
        raise StorageError(
            "the storage does not report the size of this object", uri=info.uri, hint="Download it and load the copy"
        )
    return info.size_bytes


def name_of(info: ObjectInfo) -> str:
    """Return the name of an object in its folder."""
    return name_in(info.path)


def joined(parts: list[Shards]) -> Shards:
    """Join several checkpoints into one, in the order of `parts`."""
    if len(parts) == 1:
        return parts[0]
    objects: list[SourceObject] = []
    shard_of: dict[str, int] = {}
    for part in parts:
        for name, shard in (part.shard_of or {}).items():
            if name in shard_of:
                raise duplicate_tensor(name, objects[shard_of[name]].uri, part.objects[shard].uri)
            shard_of[name] = len(objects) + shard
        objects.extend(part.objects)
    infos = [info for part in parts for info in part.infos]
    expected = [each for part in parts for each in part.expected]
    label = f"{parts[0].label} and {len(parts) - 1} more"
    remarks = tuple(remark for part in parts for remark in part.remarks)
    formats = {part.format and part.format.name: part.format for part in parts}
    if len(formats) > 1:
        names = " and ".join(sorted(name or "safetensors" for name in formats))
        raise FormatError(
            f"these are checkpoints of {names}", uri=label, hint="Load the checkpoints of each format separately"
        )
    numbers = [number for number, part in enumerate(parts) for _ in part.objects]
    return Shards(
        label,
        objects,
        shard_of or None,
        infos,
        kind="list",
        expected=expected,
        remarks=remarks,
        checkpoint_of=numbers,
        format=parts[0].format,
    )
