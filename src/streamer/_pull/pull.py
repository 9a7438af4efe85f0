"""Copies a folder of any storage, or one file, into a folder on a disk.

Guarantees: no file gets its final name before every file is complete, verified and flushed to the disk, and each
checkpoint among them has its shards. A second run reads only the missing bytes. Nothing that is pulled is executed.
Refuses, before it reads a byte: names that leave the folder, a folder that holds another pull, and a disk without
enough room.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from streamer import _native
from streamer._checkpoint_headers import pinned
from streamer._locate_shards import opened_store
from streamer._progress import Progress
from streamer._pull.authentication import authenticate
from streamer._pull.checkpoints import Copied, check_checkpoints, check_series
from streamer._pull.folder import Folder, finish_placing, folder_to_look_at, open_folder, place
from streamer._pull.listing import Listing, check_names, check_source, files_below, is_selected
from streamer._pull.record import CopyPlan, PullArguments, PulledFile, PulledFolder, PullReport
from streamer._pull.resumed_file import READ_BYTES, PartFile, name_of_part
from streamer._pull.transfer import Incoming, transfer
from streamer.backends.posix.store import PosixStore
from streamer.core.encryption.keys import check_lone_context
from streamer.core.errors import ChecksumError, FormatError, ObjectNotFoundError, TruncatedError, UsageError
from streamer.core.folders.open_folder import are_in_one_another
from streamer.core.folders.paths import absolute_path, disk_name
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_destination, check_storage_options, check_uri
from streamer.core.options.settings import Settings, resolve
from streamer.core.request.request import ProgressOption, Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.other_weights import check_replaceable, is_manifest, weights_in_the_way
from streamer.core.shards.shards import settled, sized, source_object
from streamer.core.shards.small_files import without_large
from streamer.core.store.digests import NOT_REQUESTED, NoDigest, ObjectDigest
from streamer.core.store.identities import identity_of, is_sealed, seal_of
from streamer.core.store.names import scheme_of
from streamer.core.store.parallel import MOST_LARGE, in_parallel
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.versions import is_same_version
from streamer.core.verification.by_store import digests_of
from streamer.core.verification.file_bytes import OWN, FileDigests, hash_of

_log = OwnLogger()


def pull(
    uri: str, path: str, wanted: PullArguments, *, progress: ProgressOption, on_wait: Callable[[str], None]
) -> PullReport:
    """Pull the wanted files; wait while another process pulls into the same folder."""
    with _opened(uri, path, wanted) as (source, store, settings):
        # Listed before the folder is created, so that a wrong URI leaves no empty folder.
        listing = None if os.path.exists(path) else files_below(store, source, settings)
        with open_folder(path, on_wait) as folder:
            finish_placing(folder)
            return _Pull(source, folder, store, settings, wanted).run(progress, listing)


def plan_pull(uri: str, path: str, wanted: PullArguments) -> CopyPlan:
    """Find out what `pull` would do, without writing anything or waiting for another process."""
    with _opened(uri, path, wanted) as (source, store, settings), closing(folder_to_look_at(path)) as folder:
        return _Pull(source, folder, store, settings, wanted).plan()


@contextmanager
def _opened(uri: str, path: str, wanted: PullArguments) -> Iterator[tuple[str, Store, Settings]]:
    check_uri(uri)
    check_storage_options(wanted.storage_options)
    check_lone_context(wanted.key, wanted.context)
    _check_path(path)
    settings, storage_options = resolve(wanted.options), wanted.storage_options
    with settings.watched("pull", redact(uri)):
        (uri,) = pinned(Request(uri=uri, storage_options=storage_options), settings).uris
        with opened_store(uri, storage_options, None, settings) as store:
            _check_apart(uri, store, path)
            yield uri, store, settings


class _Files(NamedTuple):
    """What a pull finds before it reads a byte."""

    listing: Listing
    chosen: dict[str, ObjectInfo]
    kept: dict[str, PulledFile]  # those of the chosen files that are in the folder
    missing: dict[str, ObjectInfo]  # the others of the chosen files
    gone: list[str]  # files of earlier pulls that the storage has no more
    others: dict[str, PulledFile]  # files of earlier pulls that stay
    older: list[str]  # weights on the disk that would hide the pulled ones


class _Pull:
    def __init__(self, uri: str, folder: Folder, store: Store, settings: Settings, wanted: PullArguments) -> None:
        self._uri, self._folder, self._store = uri, folder, store
        # Absolute, as the next pull may start in another folder.
        self._label = (absolute_path(uri) if scheme_of(uri) == "file" else redact(uri)).rstrip("/")
        self._settings, self._wanted = settings, wanted
        self._record = folder.record()
        self._place, self._is_same_place = "", False
        self._bounds: Mapping[str, float] = {}  # of the reads

    def plan(self) -> CopyPlan:
        found = self._look(None)
        copied = {name: info.size_bytes or 0 for name, info in found.missing.items()}
        return CopyPlan(self._label, self._folder.path, copied, len(found.kept), (*found.gone, *found.older))

    def _look(self, listing: Listing | None) -> _Files:
        if self._record is not None and self._record.uri != self._label:
            message = f"the folder {self._folder.path} holds a pull of {self._record.uri}"
            raise UsageError(message, uri=self._label, hint="Name another folder, or remove that one")
        listing = listing or files_below(self._store, self._uri, self._settings)
        chosen = self._chosen(listing.files)
        self._place = identity_of(self._store, ObjectInfo(self._store.root, self._label, None))
        self._is_same_place = self._record is not None and is_sealed(self._place, self._record.seal)
        check_series(listing, chosen, self._label)
        kept = self._kept(chosen)
        gone, others = self._others(listing, chosen)
        missing = {name: info for name, info in chosen.items() if name not in kept}
        older = self._older(listing, {*chosen, *others}, gone, has_new=bool(missing))
        return _Files(listing, chosen, kept, missing, gone, others, older)

    def run(self, progress: ProgressOption, listing: Listing | None) -> PullReport:
        listing, chosen, kept, missing, gone, others, older = self._look(listing)
        self._folder.check_writable({*missing, *gone, *older})
        pulled, parts, read_bytes = self._pull(missing, progress)
        check_source(self._store, self._uri, self._settings, chosen)
        record = PulledFolder(self._label, {**others, **kept, **pulled}, seal_of(self._place))
        authenticated = self._check(chosen, {*record.files, *listing.files}, pulled, others)
        if pulled or gone or self._folder.is_marked or self._is_new(record):
            place(self._folder, record, gone, parts)
        for name in older:
            self._folder.remove(name)
        files, seconds = record.files.values(), time.monotonic() - (self._settings.began or 0.0)
        self._settings.trace_end("pull", self._label, read_bytes, seconds, self._bounds, files=len(pulled))
        return PullReport(
            self._label,
            self._folder.path,
            len(record.files),
            sum(each.size_bytes for each in files),
            read_bytes,
            len(kept),
            sum(each.verified_by is not None for each in files),
            (*gone, *older),
            seconds,
            authenticated,
            tuple(name for name in gone if name in listing.files),
        )

    def _is_new(self, record: PulledFolder) -> bool:
        """Say whether a record differs from the one that is there, and can replace it."""
        is_same = self._is_same_place and self._record is not None and self._record.files == record.files
        return not (is_same or self._folder.is_read_only)

    def _check(
        self,
        chosen: Mapping[str, ObjectInfo],
        there: Collection[str],
        pulled: Mapping[str, PulledFile],
        others: Mapping[str, PulledFile],
    ) -> int:
        """Check that checkpoints are complete and, with a key, authentic, before any file gets its final name."""
        folder = self._folder

        def opened(name: str) -> int:
            if name in pulled:
                return folder.parts.open(name_of_part(name), os.O_RDONLY)
            return folder.open(name)

        wanted = self._wanted
        copied = Copied(chosen, there, self._is_selected, opened, self._label)
        try:
            check_checkpoints(copied, self._settings)
            if wanted.key is None:
                return 0
            is_whole = not (wanted.include or wanted.exclude or wanted.largest_bytes is not None)
            # Files of earlier pulls, perhaps without a key, lie beside the new ones.
            earlier = {name: ObjectInfo(name, f"{folder.path}/{name}", others[name].size_bytes) for name in others}
            every = replace(copied, infos={**earlier, **chosen})
            return authenticate(every, wanted, self._settings, is_whole=is_whole)
        except (FormatError, ObjectNotFoundError, TruncatedError) as error:
            error.hint = f"{error.hint}. No file got its final name: fix the source, or leave files out with --exclude"
            raise

    def _is_selected(self, name: str) -> bool:
        return is_selected(name, self._wanted.include, self._wanted.exclude)

    def _chosen(self, listed: Mapping[str, ObjectInfo]) -> dict[str, ObjectInfo]:
        """Select files, check their names, and look up sizes that the listing lacks."""
        names = [name for name in sorted(listed) if self._is_selected(name)]
        if not names:
            raise ObjectNotFoundError(
                f"the patterns select none of the {len(listed)} files", uri=self._label, hint="Check the patterns"
            )
        check_names(names, self._label)

        found = settled(self._store, sized(self._store, [listed[name] for name in names]))
        infos = dict(zip(names, found, strict=True))
        if self._wanted.largest_bytes is not None:
            infos = without_large(infos, self._wanted.largest_bytes)
        return infos

    def _kept(self, chosen: Mapping[str, ObjectInfo]) -> dict[str, PulledFile]:
        """Return the files that are already in the folder, in the version that the storage has now."""
        recorded = self._record.files if self._record else {}
        here = {
            name: recorded[name]
            for name, info in chosen.items()
            if name in recorded
            and recorded[name].size_bytes == info.size_bytes
            and self._folder.changed_ns(name, recorded[name].size_bytes) is not None
        }
        same = here if self._is_same_place else {}  # another place may have other bytes under equal versions
        kept = {
            name: each
            for name, each in same.items()
            if each.version and is_same_version(each.version, chosen[name].version) and chosen[name].is_settled
        }
        doubted = [name for name, each in here.items() if name not in kept and each.digest]
        for name, digest in zip(doubted, digests_of(self._store, [chosen[name] for name in doubted]), strict=True):
            if hash_of(digest) == here[name].digest:  # a new commit or upload of the same bytes
                kept[name] = replace(here[name], version=chosen[name].version)
        return self._intact(kept)

    def _intact(self, recorded: Mapping[str, PulledFile]) -> dict[str, PulledFile]:
        """Return the recorded files that are on the disk; those that somebody may have changed are read."""
        changed = {name: self._folder.changed_ns(name, each.size_bytes) for name, each in recorded.items()}
        here = [name for name in recorded if changed[name] is not None]
        doubted = [name for name in here if self._wanted.is_checked or changed[name] != recorded[name].changed_ns]
        found = in_parallel(self._crc32c, doubted, role="check", most=MOST_LARGE)
        damaged = {name for name, value in zip(doubted, found, strict=True) if value != recorded[name].crc32c}
        return {name: replace(recorded[name], changed_ns=changed[name]) for name in here if name not in damaged}

    def _crc32c(self, name: str) -> str:
        value = 0
        with open(self._folder.open(name), "rb", buffering=0) as file:
            while data := file.read(READ_BYTES):
                value = _native.crc(OWN, data, value)
        return f"{value:08x}"

    def _others(self, listing: Listing, chosen: Mapping[str, ObjectInfo]) -> tuple[list[str], dict[str, PulledFile]]:
        """Divide the other files of earlier pulls: those removed or replaced in the storage, and those unchanged."""
        recorded = self._record.files if self._record else {}
        rest = {name: each for name, each in recorded.items() if name not in chosen}
        listed = listing.files
        if not listing.is_whole:  # such a listing does not show which files were removed
            return [], self._intact({name: each for name, each in rest.items() if name not in listed})
        there = [name for name in rest if name in listed and self._is_same_place]
        # A page of links, for one, shows neither sizes nor versions.
        infos = settled(self._store, sized(self._store, [listed[name] for name in there]))
        same = {
            name: rest[name]
            for name, info in zip(there, infos, strict=True)
            if info.size_bytes == rest[name].size_bytes and is_same_version(info.version, rest[name].version)
        }
        gone = self._intact({name: each for name, each in rest.items() if name not in same})
        return sorted(gone), self._intact(same)  # what somebody has changed here is theirs, and stays

    def _older(self, listing: Listing, own: Collection[str], gone: Collection[str], *, has_new: bool) -> list[str]:
        """Return weights on the disk that would hide the pulled ones, if they may be removed; refuse them otherwise."""
        if listing.is_read_by_name:
            return []
        on_disk = PosixStore(self._folder.path)
        prefix = f"{on_disk.root.rstrip('/')}/"
        older = {
            info.path.removeprefix(prefix): info
            for info in weights_in_the_way(on_disk, [prefix + name for name in own])
            # A manifest beside files that were there already was written here later.
            if has_new or not is_manifest(info.path)
        }
        older = {name: info for name, info in older.items() if name not in gone}
        check_replaceable(on_disk, list(older.values()), self._settings, may_replace=self._wanted.replaces)
        return list(older)

    def _pull(
        self, missing: Mapping[str, ObjectInfo], progress: ProgressOption
    ) -> tuple[dict[str, PulledFile], list[PartFile], int]:
        if not missing:
            return {}, [], 0
        parts = {name: PartFile(self._folder.parts, name, info, self._place) for name, info in missing.items()}
        for name in missing:
            self._folder.check_path(name)
        needed_bytes = sum((info.size_bytes or 0) - parts[name].offset for name, info in missing.items())
        self._folder.check_space(needed_bytes)
        if self._record is None:
            self._folder.mark()
        infos = list(missing.values())
        digests = digests_of(self._store, infos) if self._wanted.is_verified else [NOT_REQUESTED] * len(infos)
        expected = dict(zip(missing, digests, strict=True))
        try:
            read_bytes = self._transfer(missing, parts, expected, progress)
        except ChecksumError as error:  # if the transfer caused it, a second read is correct
            _log.warning("%s: %s; it is read again", error.uri, error.message)
            read_bytes = self._transfer(missing, parts, expected, progress)
        pulled = {name: part.pulled(hash_of(expected[name])) for name, part in parts.items()}
        return pulled, list(parts.values()), read_bytes

    def _transfer(
        self,
        missing: Mapping[str, ObjectInfo],
        parts: Mapping[str, PartFile],
        expected: Mapping[str, ObjectDigest | NoDigest],
        progress: ProgressOption,
    ) -> int:
        """Read the missing bytes; return their number."""
        incoming = self._incoming(missing, parts, expected)
        read_bytes = sum(each.source_object.size_bytes - each.part.offset for each in incoming)
        kept_bytes = sum(each.kept_bytes for each in incoming)
        with Progress(progress, read_bytes + kept_bytes, f"{self._label} ({len(missing)} files)") as shown:
            self._bounds = transfer(incoming, self._settings, shown.update, shown.note)
        return read_bytes

    def _incoming(
        self,
        missing: Mapping[str, ObjectInfo],
        parts: Mapping[str, PartFile],
        expected: Mapping[str, ObjectDigest | NoDigest],
    ) -> list[Incoming]:
        """Return the sources of files that are not complete."""
        names = [name for name in missing if not parts[name].is_whole(expected[name])]
        objects = in_parallel(partial(source_object, self._store), [missing[name] for name in names], role="source")
        # Requests ask for checksums only with `compares_answers`, and are then as small as the checksums require.
        objects = [replace(each, compares_answers=self._wanted.is_verified) for each in objects]
        digests = [FileDigests(each, expected[name]) for name, each in zip(names, objects, strict=True)]
        return [
            Incoming(missing[name], each, parts[name], some, parts[name].offset, self._settings)
            for name, each, some in zip(names, objects, digests, strict=True)
        ]


def _check_path(path: str) -> None:
    """Refuse a URL in place of a folder: it would become a folder of this name in the working directory."""
    if "://" in path:
        hint = "To copy to a URL: python -m streamer copy. For a disk, write the path"
        raise UsageError("a pull fills a folder on a disk, and this is a URL", uri=redact(path), hint=hint)
    check_destination(path)


def _check_apart(uri: str, store: Store, path: str) -> None:
    """Refuse a folder that is the pulled one, lies in it, or contains it: the pull would list its own files."""
    if scheme_of(uri) != "file":
        return
    if are_in_one_another(disk_name(store.root), path):
        raise UsageError("the folder and the source are in one another", uri=redact(uri), hint="Name another")
