"""Copies the files of a folder of any storage into another storage, without a disk between them.

Guarantees: a file shows up only when it is whole. The index of a checkpoint, or its only file, shows up after all
files that it needs. A second run sends only missing files: a file of the target is kept if the digests of the storages
show equal content. Refuses, before a byte is sent, to replace a file that has other content: otherwise an older
checkpoint would be mixed with the new one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

from streamer._locate_shards import opened_store
from streamer._progress import Progress
from streamer._pull.checkpoints import check_series
from streamer._pull.listing import check_names, files_below, is_selected
from streamer._pull.record import Wanted
from streamer._push.order import turn
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
from streamer.core.store.parallel import in_parallel
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import Store
from streamer.plugins.registry import scheme_of

__all__ = ["Target", "push"]


@dataclass(frozen=True)
class Target:
    """Where files are copied to.

    Attributes:
        uri: URI of the folder or prefix.
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

    def run(self, progress: ProgressOption) -> PushReport:
        began = time.perf_counter()
        chosen = self._chosen()
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
            for name in missing:
                self._send(writing, name, chosen[name])
                writing.keep_shown()
        return PushReport(
            self._source.label,
            self._to.label,
            len(chosen),
            sum(each.size_bytes for each in chosen.values()),
            sent_bytes,
            len(there),
            self._verified_files,
            time.perf_counter() - began,
        )

    def _chosen(self) -> dict[str, FileBytes]:
        source, wanted = self._source, self._wanted
        listed = files_below(source.store, source.uri, self._settings).files
        names = [name for name in sorted(listed) if is_selected(name, wanted.include, wanted.exclude)]
        if not names:
            message = f"the patterns select none of the {len(listed)} files"
            raise ObjectNotFoundError(message, uri=source.label, hint="Check the patterns")
        check_names(names, source.label)
        check_series(listed, names, source.label)
        infos = sized(source.store, [listed[name] for name in names])
        return {name: FileBytes(source.store, info, self._settings) for name, info in zip(names, infos, strict=True)}

    def _path(self, name: str) -> str:
        return f"{self._target.root.rstrip('/')}/{name}"

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

    def _send(self, writing: Writing, name: str, file: FileBytes) -> None:
        digests = file.digests(file.digest()) if self._wanted.is_verified else file.digests()
        path = self._path(name)
        try:
            upload = writing.send(path, file.size_bytes, file.pieces(digests), None)
            writing.show(path, upload, None)
        except ChangedError as error:
            error.hint = "Run the command again: files that were sent are kept"
            raise
        self._verified_files += digests.verified_by is not None
