"""Finds the checkpoint of a URI in one store; the user names a file, folder, index or glob.

One listing gives all sizes and versions of a folder. If listing is denied, an index or a file can still be loaded.
No name in a checkpoint can lead out of its folder. If a folder holds safetensors and another format, safetensors is
used. Shards of one folder that the caller names one by one, as Run:ai's interface does, share a store and a listing:
otherwise each would take some milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    FormatError,
    ObjectNotFoundError,
    StorageError,
    TlsError,
    TransferTimeoutError,
)
from streamer.core.format.shard_names import INDEX_SUFFIX, SHARD_SUFFIX, USUAL_INDEX, USUAL_SHARD
from streamer.core.options.settings import Settings
from streamer.core.quoting import names_text
from streamer.core.secrets.redact import redact
from streamer.core.shards.format_choice import NO_FORMATS, Formats, is_beside_a_model
from streamer.core.shards.missing import (
    check_whole,
    is_pattern,
    no_match,
    no_shard,
    refuse_half_pulled,
    unfinished,
    unnamed,
    without_second_copies,
)
from streamer.core.shards.shards import (
    Shards,
    info_of,
    infos_of_shards,
    name_of,
    objects_of,
    read_index,
    shards_of,
)
from streamer.core.store.names import name_in
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import ObjectInfo, Store

if TYPE_CHECKING:
    from streamer.core.other_formats.interface import Format


def shards_in(
    store: Store,
    uri: str,
    settings: Settings,
    listed: Sequence[ObjectInfo] | None = None,
    formats: Formats = NO_FORMATS,
) -> Shards:
    """Find the shards of one checkpoint."""
    search = _Search(store, redact(uri), settings, formats)
    root = store.root.rstrip("/") or store.root
    if is_pattern(root.rpartition("/")[2]):
        return search.from_pattern(root)
    return search.from_name(root, listed)


class _Search(NamedTuple):
    """The search for the checkpoint of one URI."""

    store: Store  # the store that was opened for the URI
    label: str  # the URI, without secrets
    settings: Settings  # as for `shards_in`
    formats: Formats  # as for `shards_in`

    def from_pattern(self, root: str) -> Shards:
        """Find the shards of a pattern. If it matches nothing, take it as a name: names may contain its characters."""
        folder, pattern = root.rpartition("/")[0], name_in(root)
        listed = self.store.find(folder or "/")
        refuse_half_pulled(listed, self.label)
        if "*" not in pattern and any(name_of(info) == pattern for info in listed):  # names may hold the others
            return self.from_name(root)
        matches = [info for info in listed if fnmatchcase(name_of(info), pattern) and _is_meant(info, pattern)]
        if matches:
            return self._of_one_format(shards_of(self.store, self.label, matches, "glob"))
        try:
            return self.from_name(root)
        except ObjectNotFoundError as error:
            if is_pattern(folder):  # the error already says that a folder cannot be a pattern
                raise
            raise no_match(self.store, self.label, root, listed) from error

    def from_name(self, root: str, listed: Sequence[ObjectInfo] | None = None) -> Shards:
        """Find the shards of a file, an index or a folder."""
        folder, _, name = root.rpartition("/")
        format_ = None if name.endswith(SHARD_SUFFIX) else self.formats.of_index(name) or self.formats.of_name(name)
        if format_ is None and not name.endswith((SHARD_SUFFIX, INDEX_SUFFIX)):
            return self._from_folder(root)
        suffixes = (SHARD_SUFFIX,) if format_ is None else format_.suffixes
        found = [info for info in listed or () if info.path == root and info.size_bytes is not None]
        try:
            info = found[0] if found else info_of(self.store, self.label, root)
        except ObjectNotFoundError as error:
            with suppress(ObjectNotFoundError):  # the first error has the name as the user wrote it
                inner = [name_of(each) for each in self._list_or_nothing(root)]
                if any(suffix in each for each in inner for suffix in (SHARD_SUFFIX, *suffixes)):
                    return self._from_folder(root)  # a folder that is named like a file
            raise error
        if format_ is not None and name in format_.suffixes:
            return self._of_another_format(folder, self._listed(folder), metadata=name)
        if not name.endswith(INDEX_SUFFIX):
            return self._of_one_format(shards_of(self.store, self.label, [info]))
        return self._from_index(info, self._list_or_nothing(folder) if listed is None else [*listed], format_)

    def _from_folder(self, root: str) -> Shards:
        infos = self._listed(root)
        refuse_half_pulled(infos, self.label)
        indexes = [info for info in infos if name_of(info).endswith(SHARD_SUFFIX + INDEX_SUFFIX)]
        usual = [info for info in indexes if name_of(info) == USUAL_INDEX]
        if len(indexes) > 1 and not usual:
            raise FormatError(
                f"the folder holds {len(indexes)} indexes: {names_text([name_of(info) for info in indexes])}",
                uri=self.label,
                hint="Name the one to load",
            )
        if indexes:
            return self._from_index((usual or indexes)[0], infos)
        shards = [info for info in infos if name_of(info).endswith(SHARD_SUFFIX) and _is_meant(info)]
        if shards:
            names, remarks = without_second_copies([name_of(info) for info in shards])
            return self._whole([info for info in shards if name_of(info) in names], infos, remarks)
        if infos:
            return self._of_another_format(root, infos)
        return self._of_one_format(shards_of(self.store, self.label, [info_of(self.store, self.label, root)]))

    def _of_another_format(self, root: str, infos: list[ObjectInfo], metadata: str | None = None) -> Shards:
        """Find the shards of a folder without safetensors; `metadata` is the file of a format that the user named."""
        names = [name_of(info) for info in infos]
        try:
            choice = self.formats.of_folder(names) if metadata is None else self.formats.of_metadata(metadata, names)
        except FormatError as error:
            error.uri, error.hint = error.uri or self.label, error.hint or "Name the one to load"
            raise
        if choice is None:
            suffixes = [suffix for each in self.formats.load() for suffix in each.suffixes]
            raise no_shard(self.store, self.label, root, infos, suffixes)
        by_name = {name_of(info): info for info in infos}
        if choice.index_name is not None:
            return self._from_index(by_name[choice.index_name], infos, choice.format)
        meant = [name_of(info) for info in infos if _is_meant(info) and not is_beside_a_model(name_of(info))]
        remarks = unnamed(meant, choice.names, choice.format.suffixes, "the usual name of a model is not that of")
        return self._whole([by_name[name] for name in choice.names], infos, remarks)._replace(format=choice.format)

    def _whole(self, shards: list[ObjectInfo], infos: list[ObjectInfo], remarks: tuple[str, ...] = ()) -> Shards:
        """Return the shards of a folder without an index, if no shard of a numbered series is missing."""
        names = [name_of(info) for info in shards]
        remarks += check_whole(names, self.label, is_allowed=bool(self.settings.allow_missing_shards))
        remarks += unfinished([name_of(info) for info in infos], self.label)
        return shards_of(self.store, self.label, shards, "folder")._replace(remarks=remarks)

    def _from_index(self, index_info: ObjectInfo, listed: list[ObjectInfo], format_: Format | None = None) -> Shards:
        refuse_half_pulled(listed, self.label)
        if index_info.size_bytes is None:  # an entry that is listed without a size may not be a file
            index_info = self.store.info(index_info.path)
        suffixes = (SHARD_SUFFIX,) if format_ is None else format_.suffixes
        index = read_index(self.store, index_info, self.settings, suffixes)
        folder = index_info.path.rpartition("/")[0]
        infos = infos_of_shards(self.store, folder, index, listed, index_info.uri)
        position = {name: number for number, name in enumerate(index.shards)}
        shard_of = {tensor: position[shard] for tensor, shard in index.weight_map.items()}
        objects = objects_of(self.store, infos)
        remarks = unnamed([name_of(info) for info in listed if _is_meant(info)], index.shards, suffixes)
        return Shards(self.label, objects, shard_of, infos, index_info.path, "index", format=format_, remarks=remarks)

    def _of_one_format(self, shards: Shards) -> Shards:
        """Add the format, by the first bytes of each file that is not named like a shard of safetensors."""
        numbers = [i for i, info in enumerate(shards.infos) if not name_of(info).endswith(SHARD_SUFFIX)]
        if not numbers or not any(self.formats.load()):
            return shards
        objects = [shards.objects[i] for i in numbers]
        from streamer.core.other_formats.interface import HEAD_BYTES  # noqa: PLC0415 (as needed)

        ends = [(i, 0, min(each.size_bytes, HEAD_BYTES)) for i, each in enumerate(objects)]
        heads, _ = read_ranges(objects, ends, self.settings, what="beginnings")
        names = [name_of(shards.infos[i]) for i in numbers]
        found = [self.formats.of_file(name, bytes(head)) for name, head in zip(names, heads, strict=True)]
        kinds = {None if each is None else each.name: each for each in found}
        if len(kinds) > 1 or (None not in kinds and len(numbers) < len(shards.infos)):
            what = ", ".join(sorted(each or "safetensors or an unknown format" for each in kinds))
            hint = "Load the files of each format separately"
            raise FormatError(f"these are files of several formats: {what}", uri=self.label, hint=hint)
        return shards._replace(format=found[0])

    def _listed(self, root: str) -> list[ObjectInfo]:
        """List a folder; if listing is forbidden, look up the usual names of a checkpoint."""
        try:
            return self.store.find(root)
        except AccessDeniedError:
            for name in (USUAL_INDEX, USUAL_SHARD):
                with suppress(AccessDeniedError, ObjectNotFoundError):
                    return [self.store.info(f"{root}/{name}")]
            raise

    def _list_or_nothing(self, folder: str) -> list[ObjectInfo]:
        """List a folder, or return nothing if listing is forbidden: it only saves one request for each shard."""
        try:
            return self.store.find(folder)
        except AccessDeniedError:
            return []


def _is_meant(info: ObjectInfo, pattern: str = "") -> bool:
    """Say whether the user means this file: hidden files, such as unfinished downloads (``._a``), do not count."""
    return not name_of(info).startswith(".") or pattern.startswith(".")


LEAST_TO_LIST = 16  # fewer files are looked up by parallel requests: 16 run at the same time
# Listing stops if a folder has more entries: one page of 1000 entries costs as much as some 30 requests.
LISTED_PER_FILE = 32

# Schemes whose stores name an object by the path in its URL; and file names without special characters.
_OF_PATH = r"[^:]*/|/.*/|(?:file|s3a?|gs|gcs|az|abfss?)://.+/"
_PLAIN_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors"


def are_of_one_folder(uri: str, other: str) -> bool:
    """Say whether both URIs name shards in the same folder, so that one store serves both.

    Example:
        >>> are_of_one_folder("s3://bucket/a.safetensors", "s3://bucket/b.safetensors")
        True
        >>> are_of_one_folder("s3://bucket/a.safetensors", "s3://bucket/b.safetensors?versionId=1")
        False
    """
    (folder, _, name), (other_folder, _, other_name) = uri.rpartition("/"), other.rpartition("/")
    is_same = folder == other_folder and re.fullmatch(_OF_PATH, f"{folder}/") is not None
    return is_same and all(re.fullmatch(_PLAIN_NAME, each, re.ASCII) for each in (name, other_name))


def is_named_after(store: Store, uri: str) -> bool:
    """Say whether the store's root ends with the file name of the URI; a plug-in's store may use any other name."""
    return store.root.endswith(f"/{_name(uri)}")


def shards_of_files(store: Store, uris: Sequence[str]) -> list[Shards]:
    """Locate shards in one folder; return one `Shards` for each URI."""
    folder = store.root[: len(store.root) - len(_name(uris[0]))]
    listed = _listed(store, folder) if len(uris) >= LEAST_TO_LIST else {}
    labels, roots = [redact(uri) for uri in uris], [folder + _name(uri) for uri in uris]
    unlisted = [(label, root) for label, root in zip(labels, roots, strict=True) if root not in listed]
    asked_for = in_parallel(lambda each: info_of(store, *each), unlisted, role="info")
    listed.update(zip((root for _, root in unlisted), asked_for, strict=True))
    infos = [listed[root] for root in roots]
    objects = objects_of(store, infos)
    return [Shards(label, [each], None, [info]) for label, each, info in zip(labels, objects, infos, strict=True)]


def _listed(store: Store, folder: str) -> dict[str, ObjectInfo]:
    """List the folder; return nothing if listing is forbidden or has too many entries."""
    try:
        return {info.path: info for info in store.find(folder.rstrip("/") or "/") if info.size_bytes is not None}
    except (ConnectError, TlsError, TransferTimeoutError):  # other requests would fail the same way
        raise
    except StorageError:  # listing is forbidden, too long, or not supported by the server
        return {}


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]
