"""Copies the files of a folder of any storage into another storage, without a disk between them.

Guarantees: a file shows up only when it is whole. The index of a checkpoint, or its only file, shows up after all
files that it needs, if no file of the source has changed until then. A second run sends only missing files: a file of
the target is kept if the digests of the storages show equal content. Refuses, before a byte is sent, to replace a file
that has other content, and to write weights beside others that a reader of the folder would take: otherwise an older
checkpoint would be read, or mixed with the new one. With `replaces`, these are replaced, and removed when all new
files are there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from streamer._checkpoint_headers import pinned
from streamer._locate_shards import opened_store
from streamer._progress import Progress
from streamer._pull.authentication import authenticate
from streamer._pull.checkpoints import Copied, check_series
from streamer._pull.listing import Listing, check_names, check_source, files_below, is_selected, names_file
from streamer._pull.record import CopyPlan, PullArguments
from streamer._push.order import last_of, turn
from streamer._push.report import PushReport
from streamer._save.parts import Again
from streamer._save.writing import Writing, uploading_store
from streamer._versions import refuse_version
from streamer.core.conditions import Event
from streamer.core.encryption.keys import check_lone_context
from streamer.core.errors import AccessDeniedError, ChangedError, ObjectNotFoundError, StorageError, UsageError
from streamer.core.folders.open_folder import are_in_one_another
from streamer.core.folders.paths import disk_name
from streamer.core.format.shard_names import series_of
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_storage_options, check_uri
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import printable, quoted
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.other_weights import check_replaceable, is_index, is_manifest, weights_in_the_way
from streamer.core.shards.shards import settled, sized
from streamer.core.store.digests import NOT_REQUESTED, ObjectDigest
from streamer.core.store.names import check_can_hold, is_url, name_in, path_in, scheme_of
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import CommittingStore
from streamer.core.verification.file_bytes import FileBytes, are_equal

_log = OwnLogger()


@dataclass(frozen=True)
class Target:
    """Where files are copied to."""

    # URI of the folder or prefix; or of the new file, if one file is copied and its name has the same suffix.
    uri: str = field(repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # as for `streamer.save`


def push(
    source: str,
    target: Target,
    wanted: PullArguments,
    *,
    progress: ProgressOption = None,
    divide: Callable[[Mapping[str, int]], object] | None = None,
) -> PushReport:
    """Copy the wanted files of a folder, or one file, into a folder of another storage.

    `divide` gets the sizes of the missing files by name, but those that show up last, and has others send them.
    """
    with _opened(source, target, wanted) as opened:
        return opened.run(progress, divide)


def plan_push(source: str, target: Target, wanted: PullArguments) -> CopyPlan:
    """Find out what `push` would do, without writing anything."""
    with _opened(source, target, wanted) as opened:
        return opened.plan()


@contextmanager
def _opened(source: str, target: Target, wanted: PullArguments) -> Iterator[_Push]:
    for uri, options in ((source, wanted.storage_options), (target.uri, target.storage_options)):
        check_uri(uri)
        check_storage_options(options)
    check_lone_context(wanted.key, wanted.context)
    uri, settings = target.uri, resolve(wanted.options)
    refuse_version(uri, target.storage_options, settings)
    (source,) = pinned(Request(uri=source, storage_options=wanted.storage_options), settings).uris
    with (
        settings.watched("push", redact(uri)),
        opened_store(source, wanted.storage_options, None, settings) as store,
        opened_store(uri, target.storage_options, None, settings) as written,
    ):
        uploading_store(written, uri)
        are_on_disk = scheme_of(source) == scheme_of(uri) == "file"
        if are_on_disk and are_in_one_another(disk_name(store.root), disk_name(written.root)):
            raise UsageError("the two folders are in one another", uri=redact(uri), hint="Name another")
        yield _Push(_Side(source, store), _Side(uri, written), settings, wanted)


class _Side:
    """One of the two storages, with its URI for listing, and for messages."""

    def __init__(self, uri: str, store: Store) -> None:
        self.uri, self.store, self.label = uri, store, redact(uri).rstrip("/")


class _Files(NamedTuple):
    """What a push finds before it sends a byte."""

    chosen: dict[str, FileBytes]
    authenticated: int
    there: dict[str, FileBytes]  # those of the chosen files that the target has
    replaced: dict[str, ObjectInfo]  # files of the target that have other content
    older: list[ObjectInfo]  # weights of the target that would hide the new ones
    missing: list[str]  # names of the files to send, in their order


class _Push:
    def __init__(self, source: _Side, target: _Side, settings: Settings, wanted: PullArguments) -> None:
        self._source, self._to, self._target = source, target, target.store
        self._settings, self._wanted = settings, wanted
        self._verified_files = 0
        self._names_file = False  # whether the target's URI is the name of the only file

    def plan(self) -> CopyPlan:
        found = self._look()
        copied = {name: found.chosen[name].size_bytes for name in found.missing}
        removed = tuple(info.uri for info in found.older)
        return CopyPlan(self._source.label, self._to.label, copied, len(found.there), removed)

    def _look(self) -> _Files:
        listing = files_below(self._source.store, self._source.uri, self._settings)
        chosen = self._chosen(listing)
        authenticated = self._authenticated(chosen)
        there = self._there(chosen)
        replaced = self._different(chosen, there)
        there = {name: file for name, file in there.items() if name not in replaced}
        older = [] if self._wanted.is_part else self._older(listing, chosen, there)
        missing = sorted(chosen.keys() - there.keys(), key=partial(turn, chosen.keys()))
        return _Files(chosen, authenticated, there, replaced, older, missing)

    def run(self, progress: ProgressOption, divide: Callable[[Mapping[str, int]], object] | None) -> PushReport:
        chosen, authenticated, there, replaced, older, missing = self._look()
        sent_bytes = sum(chosen[name].size_bytes for name in missing)
        if divide is not None:
            last = last_of(missing)
            divide({name: chosen[name].size_bytes for name in missing if name not in last})
            missing = last
        with (
            Progress(progress, sent_bytes, f"{self._to.label} ({len(missing)} files)") as shown,
            Writing(self._target, self._settings, shown, Event(), failure="not all files are there") as writing,
        ):
            self._send_all(writing, {name: chosen[name] for name in missing}, replaced, chosen)
            removed = self._removed(older) if writing.commits else ()
            writing.complete()
        self._check_listed(missing, chosen)
        if not writing.commits:
            removed = self._removed(older)
        seconds = time.monotonic() - (self._settings.began or 0.0)
        self._settings.trace_end("push", self._to.label, sent_bytes, seconds, files=len(missing))
        figures = (len(chosen), sum(each.size_bytes for each in chosen.values()), sent_bytes, len(there))
        done = (*figures, self._verified_files, seconds, authenticated, removed)
        return PushReport(self._source.label, self._to.label, *done)

    def _authenticated(self, chosen: Mapping[str, FileBytes]) -> int:
        """Authenticate the files before a byte is sent, if there is a key; return their number."""
        wanted = self._wanted
        if wanted.key is None:
            return 0
        if scheme_of(self._source.uri) != "file":
            hint = "Pull the files with the key, and push the folder"
            raise UsageError("a key authenticates files on a disk", uri=self._source.label, hint=hint)
        infos = {name: file.info for name, file in chosen.items()}

        def opened(name: str) -> int:
            return os.open(disk_name(infos[name].path), os.O_RDONLY | os.O_CLOEXEC)

        copied = Copied(infos, infos, lambda _: True, opened, self._source.label)
        return authenticate(copied, wanted, self._settings, is_whole=not (wanted.include or wanted.exclude))

    def _chosen(self, listing: Listing) -> dict[str, FileBytes]:
        source, wanted = self._source, self._wanted
        listed = listing.files
        self._names_file = listing.is_file and names_file(self._to.uri, self._target.root, next(iter(listed)))
        names = [name for name in sorted(listed) if is_selected(name, wanted.include, wanted.exclude)]
        if not names:
            message = f"the patterns select none of the {len(listed)} files"
            raise ObjectNotFoundError(message, uri=source.label, hint="Check the patterns")
        check_names(names, source.label)
        for name in names:
            check_can_hold(scheme_of(self._to.uri), name, self._to.label)
        check_series(listing, names, source.label)
        infos = settled(source.store, sized(source.store, [listed[name] for name in names]))
        return {name: FileBytes(source.store, info, self._settings) for name, info in zip(names, infos, strict=True)}

    def _path(self, name: str) -> str:
        root = self._target.root.rstrip("/")
        return root if self._names_file else path_in(root, name)

    def _there(self, chosen: Mapping[str, FileBytes]) -> dict[str, FileBytes]:
        """Find the files that the target has already."""
        infos = in_parallel(lambda name: info_if_present(self._target, self._path(name)), list(chosen), role="info")
        return {
            name: FileBytes(self._target, info, self._settings)
            for name, info in zip(chosen, infos, strict=True)
            if info is not None
        }

    def _different(self, chosen: Mapping[str, FileBytes], there: Mapping[str, FileBytes]) -> dict[str, ObjectInfo]:
        """Return the files of the target that have other content, if they may be replaced."""
        found: dict[str, ObjectInfo] = {}
        for name, file in there.items():  # one by one: a comparison may read the file with many requests at once
            if are_equal(chosen[name], file):
                continue
            if not self._wanted.replaces:
                hint = "Copy to another place, or pass --replace"
                raise UsageError(f"another file is there: {quoted(name)}", uri=file.info.uri, hint=hint)
            found[name] = file.info
        shards = [name for name in found if series_of(name.rpartition("/")[2])]
        # While they are replaced one by one, a reader would mix them.
        if len(shards) > 1 and not isinstance(self._target, CommittingStore):
            what = f"an older checkpoint has shards of the same names: {quoted(shards[0])}"
            raise UsageError(what, uri=found[shards[0]].uri, hint="Copy to another place, or remove them first")
        return found

    def _older(
        self, listing: Listing, chosen: Mapping[str, FileBytes], there: Mapping[str, FileBytes]
    ) -> list[ObjectInfo]:
        """Return the weights that would hide the new ones, if they may be removed; refuse them otherwise."""
        if listing.is_read_by_name:
            return []
        found = weights_in_the_way(self._target, map(self._path, chosen))
        names = {self._path(name): name for name in listing.files}
        older = [info for info in found if not self._is_of_source(listing, names.get(info.path), info)]
        if chosen.keys() == there.keys():  # a manifest that was written here later
            older = [info for info in older if not is_manifest(info.path)]
        if older:
            check_replaceable(self._target, older, self._settings, may_replace=self._wanted.replaces)
        return older

    def _is_of_source(self, listing: Listing, name: str | None, info: ObjectInfo) -> bool:
        """Say whether a file that is not pushed now was pushed before, or is equal to what would have been."""
        if name is None:
            return False
        (own,) = sized(self._source.store, [listing.files[name]])
        (there,) = sized(self._target, [info])
        before = FileBytes(self._source.store, own, self._settings)
        return are_equal(before, FileBytes(self._target, there, self._settings))

    def _send_all(
        self,
        writing: Writing,
        missing: Mapping[str, FileBytes],
        replaced: Mapping[str, ObjectInfo],
        chosen: Mapping[str, FileBytes],
    ) -> None:
        """Send files, and show each. A manifest waits until the next file is sent, which completes its checkpoint.

        Indexes, or else the last file, show up only if no file of the source has changed until then. If one changes
        at this moment, they are removed again. If files are replaced, all wait until the last is sent, so that they
        show up right after each other.
        """
        last = [name for name in missing if is_index(name)] or [*missing][-1:]
        held: list[tuple[str, OwningUpload]] = []
        for name, file in missing.items():
            held.append((name, self._sent(writing, name, file, replaced.get(name))))
            if (is_manifest(name) or replaced) and name not in last[-1:]:
                continue
            if name in last:
                self._check_source(chosen)
            for each, upload in held:
                with _resumable():
                    writing.show(self._path(each), upload, replaced.get(each))
            held.clear()
            if name not in last:
                writing.keep_shown()
        self._check_source(chosen)
        writing.keep_shown()

    def _check_source(self, chosen: Mapping[str, FileBytes]) -> None:
        infos = {name: each.info for name, each in chosen.items()}
        with _resumable():
            check_source(self._source.store, self._source.uri, self._settings, infos)

    def _sent(self, writing: Writing, name: str, file: FileBytes, replaced: ObjectInfo | None) -> OwningUpload:
        digest = file.digest() if self._wanted.is_verified else NOT_REQUESTED
        with _resumable():
            content = Again(lambda: file.pieces(file.digests(digest)))
            upload = writing.send(self._path(name), file.size_bytes, content, replaced)
        self._verified_files += isinstance(digest, ObjectDigest)
        return upload

    def _check_listed(self, names: Iterable[str], chosen: Mapping[str, FileBytes]) -> None:
        """Look for files that the target lists by another name, or later: some servers change names, and find both."""
        if is_url(self._target.root):  # pages of web servers need not link to every file
            return
        paths = {self._path(name): name for name in names}
        unlisted: list[str] = []
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            with suppress(AccessDeniedError):
                listed = {name_in(info.path) for info in self._target.find(folder or "/")}
                here = {name_in(path): name for path, name in paths.items() if path.rpartition("/")[0] == folder}
                unlisted += [name for each, name in here.items() if each not in listed]
        others = self._others_by_size(chosen) if unlisted else {}
        for name in unlisted:
            if (other := others.get(chosen[name].size_bytes)) is not None:
                what = f"{quoted(name)} was sent; the storage lists {quoted(other)}, and not this name"
                hint = "All files were sent, and stay there. If the storage changed the name, rename the file"
                raise StorageError(what, uri=self._to.label, hint=hint)
        if unlisted:
            more = f" and {len(unlisted) - 1} others" if len(unlisted) > 1 else ""
            what = "%s%s: the storage finds it by name, but does not list it yet; a load may miss it"
            _log.warning(what, printable(f"{self._to.label}/{unlisted[0]}"), more)

    def _others_by_size(self, chosen: Collection[str]) -> dict[int | None, str]:
        """Return the files below the target that are not of this push, by their sizes."""
        with suppress(AccessDeniedError, ObjectNotFoundError):
            found = files_below(self._target, self._to.uri, self._settings).files
            return {info.size_bytes: name for name, info in found.items() if name not in chosen}
        return {}

    def _removed(self, older: Sequence[ObjectInfo]) -> tuple[str, ...]:
        store: Any = self._target
        for info in older:
            store.remove(info.path)
        return tuple(redact(each.uri) for each in older)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except ChangedError as error:
        error.hint = "Run the command again: files that were sent are kept"
        raise
