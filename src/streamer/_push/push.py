"""Copies the files of a folder of any storage into another storage, without a disk between them.

Guarantees: a file shows up only when it is whole. The index of a checkpoint, or its only file, shows up after all
files that it needs. A second run sends only missing files: a file of the target is kept if the digests of the storages
show equal content. Refuses, before a byte is sent, to replace a file that has other content: otherwise an older
checkpoint would be mixed with the new one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from threading import Event
from typing import Any

from streamer._locate_shards import opened_store
from streamer._progress import Progress
from streamer._pull.authentication import authenticate
from streamer._pull.checkpoints import Copied, check_series
from streamer._pull.listing import check_names, files_below, is_selected
from streamer._pull.record import Wanted
from streamer._push.order import is_manifest, turn
from streamer._push.report import PushReport
from streamer._save.writing import Writing, uploading_store
from streamer.backends.posix.open_folder import are_in_one_another
from streamer.core.checkpoint.file_bytes import FileBytes, are_equal
from streamer.core.checkpoint.small_files import sized
from streamer.core.disk_names import disk_name
from streamer.core.errors import ChangedError, ObjectNotFoundError, UsageError
from streamer.core.options.arguments import check_storage_options, check_uri
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import quoted
from streamer.core.request.request import ProgressOption
from streamer.core.secrets.hidden_arguments import hidden, hidden_uri
from streamer.core.secrets.redact import redact
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store
from streamer.plugins.registry import scheme_of

__all__ = ["Target", "push"]


@dataclass(frozen=True)
class Target:
    """Where files are copied to.

    Attributes:
        uri: URI of the folder or prefix; or of the new file, if one file is copied and its name has the same suffix.
        storage_options: As for `streamer.save`.
    """

    uri: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


def push(source: str, target: Target, wanted: Wanted, *, progress: ProgressOption) -> PushReport:
    """Copy the wanted files of a folder, or one file, into a folder of another storage.

    Args:
        source: URI of a folder, or of one file.
        target: Where to copy the files to.
        wanted: Which files of the source to copy; ``largest_bytes`` and ``is_checked`` have no meaning here.
        progress: As for `streamer.load`.

    Raises:
        UsageError: the target cannot be written, or holds a file of the same name with other content.
        ObjectNotFoundError: the source has no files, none of them is wanted, or a shard is missing.
        ChangedError: a file was replaced meanwhile, in the source or in the target.
        ChecksumError: the bytes mismatch the digest that the source's storage keeps.
        TamperedError: there is a key, and a file is not as it was saved, or may hold tensors and is not encrypted.
        StorageError: or a subclass, from either storage.
    """
    for uri, options in ((source, wanted.storage_options), (target.uri, target.storage_options)):
        check_uri(uri)
        check_storage_options(options)
    source, uri = hidden_uri(source), hidden_uri(target.uri)
    settings = resolve(wanted.options)
    with (
        opened_store(source, hidden(wanted.storage_options), None, settings) as store,
        opened_store(uri, hidden(target.storage_options), None, settings) as written,
    ):
        uploading_store(written, uri)
        if scheme_of(source) == scheme_of(uri) == "file" and are_in_one_another(
            disk_name(store.root), disk_name(written.root)
        ):
            raise UsageError("the two folders are in one another", uri=redact(uri), hint="Name another")
        return _Push(_Side(source, store), _Side(uri, written), settings, wanted).run(progress)


class _Side:
    """One of the two storages, with its URI for listing, and for messages."""

    def __init__(self, uri: str, store: Store) -> None:
        self.uri, self.store, self.label = uri, store, redact(uri).rstrip("/")


class _Push:
    def __init__(self, source: _Side, target: _Side, settings: Settings, wanted: Wanted) -> None:
        self._source, self._to, self._target = source, target, target.store
        self._settings, self._wanted = settings, wanted
        self._verified_files = 0
        self._names_file = False  # whether the target's URI is the name of the only file

    def run(self, progress: ProgressOption) -> PushReport:
        began = time.perf_counter()
        chosen = self._chosen()
        authenticated = self._authenticated(chosen)
        there = self._there(chosen)
        self._check_equal(chosen, there)
        missing = sorted(chosen.keys() - there.keys(), key=partial(turn, chosen.keys()))
        sent_bytes = sum(chosen[name].size_bytes for name in missing)
        label = f"{self._to.label} ({len(missing)} files)"
        with (
            Progress(progress, sent_bytes, label) as shown,
            Writing(
                self._target, self._settings.memory_limit_bytes, shown, Event(), failure="not all files are there"
            ) as writing,
        ):
            self._send_all(writing, {name: chosen[name] for name in missing})
        return PushReport(
            self._source.label,
            self._to.label,
            len(chosen),
            sum(each.size_bytes for each in chosen.values()),
            sent_bytes,
            len(there),
            self._verified_files,
            time.perf_counter() - began,
            authenticated,
        )

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

    def _chosen(self) -> dict[str, FileBytes]:
        source, wanted = self._source, self._wanted
        listing = files_below(source.store, source.uri, self._settings)
        listed = listing.files
        self._names_file = listing.is_file and _names_file(self._to, next(iter(listed)))
        names = [name for name in sorted(listed) if is_selected(name, wanted.include, wanted.exclude)]
        if not names:
            message = f"the patterns select none of the {len(listed)} files"
            raise ObjectNotFoundError(message, uri=source.label, hint="Check the patterns")
        check_names(names, source.label)
        check_series(listed, names, source.label)
        infos = sized(source.store, [listed[name] for name in names])
        return {name: FileBytes(source.store, info, self._settings) for name, info in zip(names, infos, strict=True)}

    def _path(self, name: str) -> str:
        root = self._target.root.rstrip("/")
        return root if self._names_file else f"{root}/{name}"

    def _there(self, chosen: Mapping[str, FileBytes]) -> dict[str, FileBytes]:
        """Find the files that the target has already."""
        infos = in_parallel(lambda name: info_if_present(self._target, self._path(name)), list(chosen), role="info")
        return {
            name: FileBytes(self._target, info, self._settings)
            for name, info in zip(chosen, infos, strict=True)
            if info is not None
        }

    def _check_equal(self, chosen: Mapping[str, FileBytes], there: Mapping[str, FileBytes]) -> None:
        for name, file in there.items():  # one by one: a comparison may read the file with many requests at once
            if not are_equal(chosen[name], file):
                hint = "Copy to another place, or remove this file: it is never replaced"
                raise UsageError(f"another file is there: {quoted(name)}", uri=file.info.uri, hint=hint)

    def _send_all(self, writing: Writing, missing: Mapping[str, FileBytes]) -> None:
        """Send files, and show each. A manifest waits until the next file is sent, which completes its checkpoint."""
        held: list[tuple[str, OwningUpload]] = []
        for name, file in missing.items():
            held.append((name, self._sent(writing, name, file)))
            if is_manifest(name):
                continue
            self._show(writing, held)
            held.clear()
        self._show(writing, held)

    def _sent(self, writing: Writing, name: str, file: FileBytes) -> OwningUpload:
        digests = file.digests(file.digest()) if self._wanted.is_verified else file.digests()
        with _resumable():
            upload = writing.send(self._path(name), file.size_bytes, file.pieces(digests), None)
        self._verified_files += digests.verified_by is not None
        return upload

    def _show(self, writing: Writing, held: Sequence[tuple[str, OwningUpload]]) -> None:
        for name, upload in held:
            with _resumable():
                writing.show(self._path(name), upload, None)
            writing.keep_shown()


def _names_file(target: _Side, name: str) -> bool:
    """Say whether the target of one file is its new name, as for ``cp``: the last name has the same suffix."""
    root, suffix = target.store.root, PurePosixPath(name).suffix
    if target.uri.partition("?")[0].endswith("/") or not suffix or PurePosixPath(root).suffix != suffix:
        return False
    return not (scheme_of(target.uri) == "file" and os.path.isdir(disk_name(root)))


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except ChangedError as error:
        error.hint = "Run the command again: files that were sent are kept"
        raise
