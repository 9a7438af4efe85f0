"""Lists all files below a URL; decides which of them are wanted, and which may be written to a disk.

A storage may list any name. A pull refuses names that leave the folder, names that a disk cannot store, a name that is
both a file and a folder, and names under which it keeps its own state.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from streamer.core.errors import AccessDeniedError, FormatError, ObjectNotFoundError, StorageError, UsageError
from streamer.core.folders.paths import disk_name
from streamer.core.format.shard_names import INDEX_SUFFIX, SHARD_SUFFIX, USUAL_INDEX, USUAL_SHARD
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable, quoted
from streamer.core.secrets.redact import redact
from streamer.core.shards.missing import INCOMPLETE, nothing_there, refuse_half_pulled
from streamer.core.shards.other_weights import is_found_by_name
from streamer.core.shards.shards import check_unchanged, info_of, infos_of_shards, read_index, sized
from streamer.core.shards.small_files import USUAL_FILES, named_files
from streamer.core.store.names import is_url, name_in, scheme_of, unquoted
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import FolderStore, ObjectInfo, Store

STATE = ".streamer-pull"  # the sub-folder with the pull's own state
LONGEST_SEGMENT_BYTES = 255  # NAME_MAX of Linux

# Limits, because a server may invent sub-folders, and a link may lead to a parent folder.
MOST_FOLDERS = 10_000
DEEPEST = 32

INDEXES = (SHARD_SUFFIX + INDEX_SUFFIX, ".bin" + INDEX_SUFFIX)

_log = OwnLogger()


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a file is wanted: it matches a pattern of `include`, if there are any, and none of `exclude`.

    Patterns are those of ``hf download``: they match the whole relative name, ``*`` also matches slashes, and a slash
    at the end means all files below.

    Example:
        >>> [is_selected(name, ["*.json", "vae/"], ["vae/b*"]) for name in ("a.json", "vae/c.bin", "vae/b.json", "d")]
        [True, True, False, False]
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def names_file(uri: str, root: str, name: str) -> bool:
    """Say whether the target of one file is its new name, as for ``cp``: the last name has the same suffix."""
    suffix = PurePosixPath(name).suffix
    if uri.partition("?")[0].endswith("/") or not suffix or PurePosixPath(root).suffix != suffix:
        return False
    return not (scheme_of(uri) == "file" and os.path.isdir(disk_name(root)))


def is_safe(name: str) -> bool:
    r"""Whether a relative name stays in its folder, and a disk can store it.

    Example:
        >>> [is_safe(name) for name in ("vae/model.bin", "../a", "/a", "a//b", "", "a/.", "a\0", ".streamer-pull/b")]
        [True, False, False, False, False, False, False, False]
    """
    segments = name.split("/")
    if segments[0] in (STATE, INCOMPLETE) or "\0" in name:
        return False
    try:
        lengths = [len(each.encode("utf-8", "surrogateescape")) for each in segments]
    except UnicodeEncodeError:  # lone surrogates
        return False
    return max(lengths) <= LONGEST_SEGMENT_BYTES and not {"", ".", ".."}.intersection(segments)


def check_names(names: Iterable[str], uri: str) -> None:
    """Check names before anything is written."""
    files = set(names)
    for name in sorted(files):
        if not is_safe(name):
            raise _refused(f"the storage lists {quoted(name)}, which cannot be the name of a file in this folder", uri)
        folder = next((str(each) for each in PurePosixPath(name).parents if str(each) in files), None)
        if folder is not None:
            raise _refused(f"the storage lists {quoted(folder)} as a file, and as the folder of {quoted(name)}", uri)


def _refused(message: str, uri: str) -> FormatError:
    return FormatError(message, uri=uri, hint="Nothing was pulled. Leave the file out with --exclude, or rename it")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each + "*" if each.endswith("/") else each) for each in patterns)


@dataclass(frozen=True)
class Listing:
    """The files below a URL."""

    # The files, by their names relative to the URL; for the URL of one file, only this file; for the URL of an index,
    # the index and the shards that it names.
    files: dict[str, ObjectInfo]
    is_whole: bool = True  # whether these are all files; False if listing was forbidden
    is_file: bool = False  # whether the URL names one file, not a folder

    @property
    def is_read_by_name(self) -> bool:
        """Whether it is one file that readers of its folder do not look for."""
        return self.is_file and not is_found_by_name(next(iter(self.files)))


def files_below(store: Store, uri: str, settings: Settings) -> Listing:
    """Return the files below a URL."""
    label, root = redact(uri), store.root.rstrip("/")
    try:
        found = _Walk(store, label).files(root)
    except AccessDeniedError as error:
        with suppress(StorageError):
            return _one_file(store, uri, settings)
        return Listing(_named_files(store, label, settings, error), is_whole=False)
    if not found and not uri.endswith("/"):
        return _one_file(store, uri, settings)
    if not found:
        nothing = ObjectNotFoundError("no file is at this URI", uri=label, hint="Check the URI")
        raise nothing_there(nothing, store, label, root)
    return Listing(found)


def check_source(store: Store, uri: str, settings: Settings, read: Mapping[str, ObjectInfo]) -> None:
    """List the files again, after they were read, and compare their versions: together they must be of one moment."""
    listed = files_below(store, uri, settings).files
    names = [name for name in read if name in listed]
    now = dict(zip(names, sized(store, [listed[name] for name in names]), strict=True))
    for name, info in read.items():
        if not info.is_same_as(now.get(name)):  # some listings write a version in another way
            check_unchanged(info, info_if_present(store, info.path))


def _named_files(store: Store, label: str, settings: Settings, refusal: AccessDeniedError) -> dict[str, ObjectInfo]:
    """Look up files of usual names, and the shards that the index names; there may be other files."""
    usual = named_files(store, (USUAL_INDEX, USUAL_SHARD, *USUAL_FILES))
    found = {name_in(info.path): info for info in usual}
    if USUAL_INDEX in found:
        found.update(_shards_of(store, found[USUAL_INDEX], settings))
    elif USUAL_SHARD not in found:
        raise refusal
    _log.warning("%s: listing is forbidden, so only the weights and files of usual names are pulled", printable(label))
    return found


def _shards_of(store: Store, index_info: ObjectInfo, settings: Settings) -> dict[str, ObjectInfo]:
    """Return the shards that an index names, by name."""
    suffix = index_info.path.removesuffix(INDEX_SUFFIX).rpartition(".")[2]
    index = read_index(store, index_info, settings, (f".{suffix}",))
    infos = infos_of_shards(store, index_info.path.rpartition("/")[0], index, [], index_info.uri)
    return dict(zip(index.shards, infos, strict=True))


def _one_file(store: Store, uri: str, settings: Settings) -> Listing:
    try:
        info = info_of(store, redact(uri), store.root.rstrip("/"))
    except ObjectNotFoundError as error:
        folder, _, name = redact(uri).rpartition("/")
        if "*" in name:
            error.hint = f"To pull some files of a folder, pass {folder} and --include {shlex.quote(name)}"
        raise
    name = name_in(info.path)
    if not name.endswith(INDEXES):
        return Listing({name: info}, is_file=True)
    return Listing({name: info, **_shards_of(store, info, settings)})


class _Walk:
    """Lists sub-folders level by level; the folders of one level are listed in parallel."""

    def __init__(self, store: Store, label: str) -> None:
        self._store, self._label = store, label

    def files(self, root: str) -> dict[str, ObjectInfo]:
        if not isinstance(self._store, FolderStore):
            _log.warning("%s: this storage lists no sub-folders, so their files are not pulled", printable(self._label))
        found: dict[str, ObjectInfo] = {}
        level, folders = [(root or "/", "")], 1
        for _ in range(DEEPEST):
            following = []
            answers = in_parallel(self._listed, level, role="list")
            for (path, prefix), (infos, names) in zip(level, answers, strict=True):
                if not prefix:
                    refuse_half_pulled(infos, self._label)
                found.update((prefix + name_in(info.path), info) for info in infos)
                for name in names:
                    if prefix or name != STATE:
                        inside = f"{path}/{name}" if path != "/" else name
                        shown = unquoted(name) if is_url(path) else name
                        following.append((inside, f"{prefix}{shown}/"))
            level, folders = following, folders + len(following)
            if not level:
                return found
            if folders > MOST_FOLDERS:
                break
        raise UsageError(
            f"the folder has more than {MOST_FOLDERS} sub-folders, or some below {DEEPEST} others, such as "
            f"{printable(level[0][1][:60])!r}",
            uri=self._label,
            hint="Name the sub-folder to pull, or remove the link that leads back",
        )

    def _listed(self, folder: tuple[str, str]) -> tuple[list[ObjectInfo], list[str]]:
        path, prefix = folder
        names = self._store.folders(path) if isinstance(self._store, FolderStore) else []
        found = self._store.find(path)
        if not path.endswith("/") or path == "/" or any(info.path.startswith(f"{path}/") for info in found):
            return found, names
        if found or not names:
            # This storage cannot list a folder without a name: one entry stands for what is below it.
            return [ObjectInfo(f"{path}/", f"{self._label}/{prefix}", None)], []
        return found, names
