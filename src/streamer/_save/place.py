"""The place of a save: the files that exist there, the names of the new files, old files to remove and shards to keep.

Guarantees: a new shard never has the name of an existing file, so an older checkpoint stays whole until the new index,
or the new only file, shows up. Before a byte is written, two cases are refused. One is a checkpoint that may not be
overwritten. The other is a folder with other tensor files, which a load of the folder would read, too.

A shard that an earlier save wrote before it ended early is kept only if it has exactly the bytes that would be sent.
The digest of its storage shows this, or the shard is read back. A shard that an index names belongs to a complete
checkpoint, and is never kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from streamer import _native
from streamer._save.parts import ShardBytes
from streamer._save.saved_tensors import shard_names
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import (
    ChangedError,
    ManifestError,
    ObjectNotFoundError,
    ShardIndexError,
    StorageError,
    TruncatedError,
    UsageError,
)
from streamer.core.format.index import check_index_size, parse_index
from streamer.core.format.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from streamer.core.format.shard_names import (
    MANIFEST_SUFFIX,
    SHARD_SUFFIX,
    USUAL_INDEX,
    USUAL_MANIFEST,
    USUAL_SHARD,
    incomplete_series,
    is_of_checkpoint,
    is_usual_shard,
    series_of,
)
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.shards.other_weights import check_replaceable, is_found_by_name, weights_in_the_way
from streamer.core.shards.shards import size_of, sized
from streamer.core.store.names import name_in
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import CommittingStore, changed_meanwhile
from streamer.core.verification.file_bytes import FileBytes, has_content

MOST_NAMES = 4  # most names with a save id that are tried; each older checkpoint of the same tensors may have one


@dataclass(frozen=True)
class Resumed:
    """The shards to save, for a comparison with existing files."""

    store: Store  # where they are
    settings: Settings  # how they are read
    shards: Sequence[ShardBytes]  # the shards to be saved, two or more
    sums: Mapping[int, int] | None = None  # CRC-32C of shards by number, if this process does not have all their bytes

    def candidates(self) -> list[int]:
        """Return the numbers of shards that may exist, by name and size."""
        sizes = {name_in(info.path): info.size_bytes for info in self.store.find(self.store.root)}
        named = [pair for names in self._possible_names() for pair in enumerate(names)] if len(self.shards) > 1 else []
        return sorted(
            {number for number, name in named if sizes.get(name, -1) in (None, self.shards[number].size_bytes)}
        )

    def names(self, existing: Mapping[str, ObjectInfo], in_use: Collection[str]) -> list[str] | None:
        """Name the shards as the save that ended early did."""
        for names in self._possible_names():
            there = [name for name in names if name in existing]
            if not any(name in in_use for name in there) and self._are_equal(names, existing):
                return names
        return None

    def _possible_names(self) -> Iterator[list[str]]:
        count = len(self.shards)
        yield shard_names(count, has_index=True)
        value = 0
        for shard in self.shards:
            value = _native.crc("crc32c", shard.header, value)
        for more in range(MOST_NAMES):
            yield shard_names(count, has_index=True, save_id=f"{(value + more) % (1 << 32):08x}")

    def _are_equal(self, names: list[str], existing: Mapping[str, ObjectInfo]) -> bool:
        found = [(number, existing[name]) for number, name in enumerate(names) if name in existing]
        if any(info.size_bytes != self.shards[number].size_bytes for number, info in found):
            return False
        return all(self._is_equal(number, FileBytes(self.store, info, self.settings)) for number, info in found)

    def _is_equal(self, number: int, file: FileBytes) -> bool:
        if self.sums is None:
            return has_content(file, self.shards[number].digested)
        return self.sums.get(number) == file.crc32c()


_SAVE_TO_FOLDER = "Save to the folder with overwrite=True, which replaces a checkpoint, or save elsewhere"
_MOVE_AWAY = "Save elsewhere, or move them away first: a load of the folder could read them as part of the new one"


@dataclass(frozen=True)
class Place:
    """The files of one save."""

    folder: str  # the store's own path of the folder, with a slash at its end
    shards: Sequence[str]  # names of the new shards
    index: str | None  # name of the new index, or None for a single file
    manifest: str  # name of the manifest, new or old
    # Existing files that belong to the checkpoint, by name.
    existing: dict[str, ObjectInfo] = field(default_factory=dict)
    # New shards that exist already and are complete: an earlier save that ended early wrote them.
    left: frozenset[str] = frozenset()

    @property
    def has_old_shards_without_index(self) -> bool:
        """Whether the new index would be the first, so that the old shards need an index that sets them apart."""
        has_shards = any(name.endswith(SHARD_SUFFIX) for name in self.existing)
        return has_shards and self.index is not None and self.index not in self.existing

    @property
    def commit(self) -> str:
        """Name of the file that makes the checkpoint complete."""
        return self.index or self.shards[0]

    def with_existing(self, name: str, info: ObjectInfo) -> Place:
        """Return the place after a file of the older checkpoint was written again."""
        return replace(self, existing={**self.existing, name: info})

    def unnamed(self, *, has_manifest: bool) -> list[str]:
        """List existing files that the new checkpoint does not use; files that readers look for first come first."""
        new = {*self.shards, self.index, self.manifest if has_manifest else None}
        return sorted(
            (name for name in self.existing if name not in new),
            key=lambda name: (name != USUAL_INDEX, name != USUAL_SHARD, name),
        )


def place_of(
    store: Store, shards: int, settings: Settings, *, is_file: bool, overwrite: bool, resumed: Resumed | None = None
) -> Place:
    """Examine the existing files, and name the new ones."""
    if is_file:
        name = store.root.rpartition("/")[2]
        prefix = store.root[: len(store.root) - len(name)]
        manifest = name + MANIFEST_SUFFIX
        place = Place(prefix, [name], None, manifest, _present(store, [prefix + name, prefix + manifest]))
        if is_found_by_name(name):
            others = [info for info in weights_in_the_way(store, [store.root]) if info.path != prefix + manifest]
            has_foreign = bool(_foreign(store, {name_in(info.path): info for info in others}, settings))
            check_replaceable(store, others, settings, hint=_MOVE_AWAY if has_foreign else _SAVE_TO_FOLDER)
    else:
        place = _folder(store, shards, settings, resumed)
    # A manifest alone is no checkpoint: a save that ended early may have written it before the file that comes last.
    if not overwrite and any(name != place.manifest for name in place.existing):
        raise _refusal(place.existing, is_resumed=resumed is not None)
    return place


@contextmanager
def writers_errors(
    kinds: tuple[type[StorageError], ...] = (ChangedError, ObjectNotFoundError, TruncatedError),
) -> Iterator[None]:
    """Give an error about a file that changes while a save reads it the advice for a writer."""
    try:
        yield
    except kinds as error:
        what = "another program has changed a file of the checkpoint meanwhile"
        hint = changed_meanwhile("", None).hint
        raise ChangedError(what, uri=error.uri, hint=hint, status=error.status) from error


def _refusal(existing: Mapping[str, ObjectInfo], *, is_resumed: bool) -> UsageError:
    first = min(existing)
    others = [name for name in existing if name != USUAL_MANIFEST and not series_of(name)]
    if incomplete_series(existing) and not others:
        what = f"there are shards of a save that did not end: {quoted(first)}"
        how = "Continue it with resume=True and the same tensors"
        if is_resumed:
            what, how = f"{what}, and not of this one", "Pass the tensors, metadata= and max_shard_bytes= of that save"
        hint = f"{how}, or replace them with overwrite=True, or save elsewhere"
    else:
        what = f"there is a checkpoint already: {quoted(first)}"
        hint = "Save elsewhere, or pass overwrite=True: the old one stays loadable until the new one is complete"
    return UsageError(what, uri=existing[first].uri, hint=hint)


def old_manifest(store: Store, place: Place, settings: Settings) -> Manifest | None:
    """Read the manifest of the older checkpoint; None if there is none, or if it cannot be read."""
    info = place.existing.get(place.manifest)
    if info is None or not 0 < size_of(info) <= MAX_MANIFEST_BYTES:
        return None
    try:
        return parse_manifest(_content(store, info, settings), uri=info.uri)
    except ManifestError:
        return None


def _present(store: Store, paths: Sequence[str]) -> dict[str, ObjectInfo]:
    infos = {path.rpartition("/")[2]: info_if_present(store, path) for path in paths}
    return {name: info for name, info in infos.items() if info is not None}


def _folder(store: Store, shards: int, settings: Settings, resumed: Resumed | None) -> Place:
    folder = f"{store.root.rstrip('/')}/"
    listed = {info.path.rpartition("/")[2]: info for info in store.find(store.root)}
    names_there = [name for name in listed if is_of_checkpoint(name) or name == USUAL_MANIFEST]
    with writers_errors():
        existing = dict(zip(names_there, sized(store, [listed[name] for name in names_there]), strict=True))
    _check_belongs(store, existing, settings)  # also before a refusal that advises overwrite=True
    # A single file replaces a single file without an index. In all other cases, readers need an index to know which of
    # the files in the folder belong together.
    is_at_once = isinstance(store, CommittingStore)  # the old files go when the new ones come
    has_index = shards > 1 or not (is_at_once or existing.keys() <= {USUAL_SHARD, USUAL_MANIFEST})
    names = None
    if resumed is not None and shards > 1:
        index = existing.get(USUAL_INDEX)
        names = resumed.names(existing, _named_in(store, index, settings) if index else ())
    if names is not None:
        left = frozenset(names) & existing.keys()
        older = {name: info for name, info in existing.items() if name not in left}
        return Place(folder, names, USUAL_INDEX, USUAL_MANIFEST, older, left)
    names = shard_names(shards, has_index=has_index)
    if has_index and not is_at_once and not existing.keys().isdisjoint(names):
        names = shard_names(shards, has_index=True, save_id=secrets.token_hex(4))
    return Place(folder, names, USUAL_INDEX if has_index else None, USUAL_MANIFEST, existing)


def _check_belongs(store: Store, existing: dict[str, ObjectInfo], settings: Settings) -> None:
    """Refuse tensors and indexes that belong to something else, as a load of the folder may read them, too."""
    if foreign := _foreign(store, existing, settings):
        what = f"the folder holds files of another checkpoint: {quoted(foreign[0])}"
        raise UsageError(what, uri=existing[foreign[0]].uri, hint=_MOVE_AWAY)


def _foreign(store: Store, existing: Mapping[str, ObjectInfo], settings: Settings) -> list[str]:
    """Return the tensors and indexes that overwrite=True does not replace."""
    index = existing.get(USUAL_INDEX)
    named = _named_in(store, index, settings) if index else frozenset[str]()
    others = [name for name in existing if name not in named and not is_usual_shard(name)]
    return [name for name in others if name not in (USUAL_INDEX, USUAL_MANIFEST)]


def _named_in(store: Store, info: ObjectInfo, settings: Settings) -> frozenset[str]:
    check_index_size(size_of(info), uri=info.uri)
    content = _content(store, info, settings)
    try:
        return frozenset(parse_index(content, uri=info.uri).shards)
    except ShardIndexError as error:
        error.hint = "It does not say which files are those of the older checkpoint: remove it and them, and save again"
        raise


def _content(store: Store, info: ObjectInfo, settings: Settings) -> bytes:
    size_bytes = size_of(info)
    source = SourceObject(info.uri, store.source(info), size_bytes)
    with writers_errors():
        content, _ = read_ranges([source], [(0, 0, size_bytes)], settings, what="indexes")
    return bytes(content[0])
