"""Writes the files of one save: all bytes first, then one file after the other shows up; or none stays.

Guarantees: after an error, also an interrupt, what was written is removed again, and what could not be removed is named
in the error or in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from streamer._progress import Progress
from streamer._save.parts import PART_BYTES, cut, part_bytes_for
from streamer.core.errors import LoadCancelledError, StorageError, StreamerError, UsageError
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import Upload, UploadingStore, send_parts

__all__ = ["Writing", "quiet_writing", "uploading_store"]

_log = logging.getLogger("streamer")

MOST_PARALLEL = 8
# Memory that a part in flight may need, in parts: the part itself, if several tensors meet in it, and copies of it
# on the way to the network.
COPIES_OF_PART = 3


def uploading_store(store: Store, uri: str) -> UploadingStore:
    """Return the store, typed as a store that can be written.

    Raises:
        UsageError: the store cannot be written.
    """
    if isinstance(store, UploadingStore):
        return store
    hint = "Save to a disk or an object store, and publish it from there"
    raise UsageError("this storage cannot be written", uri=redact(uri), hint=hint)


@contextmanager
def quiet_writing(store: Store, uri: str, settings: Settings) -> Iterator[Writing]:
    """Write files for another library: it shows its own progress, and nobody cancels.

    Raises:
        UsageError: the store cannot be written.
    """
    with (
        Progress(False, 0, "") as progress,
        Writing(uploading_store(store, uri), settings.memory_limit_bytes, progress, Event()) as writing,
    ):
        yield writing


class Writing:
    """A context manager around the writing of some files.

    Args:
        store: The store to write to.
        memory_limit_bytes: Bounds the parts in flight.
        progress: Progress of the save; its total is the bytes of all files.
        is_cancelled: Set when the caller wants the save to end.
        failure: How the message of an error begins.
    """

    def __init__(
        self,
        store: Any,
        memory_limit_bytes: int,
        progress: Progress,
        is_cancelled: Event,
        *,
        failure: str = "not saved",
    ) -> None:
        self._store, self._progress, self._is_cancelled = store, progress, is_cancelled
        self._most_parallel = max(1, min(MOST_PARALLEL, memory_limit_bytes // (COPIES_OF_PART * PART_BYTES)))
        self._begun: list[tuple[str, Upload]] = []
        self._shown: list[tuple[str, Callable[[], None]]] = []  # files that no older checkpoint had
        self._failure = failure
        self.sent_bytes = 0

    def send(self, path: str, size_bytes: int, pieces: Iterable[memoryview], replaced: ObjectInfo | None) -> Upload:
        """Send all bytes of one file, which shows up when `show` is called.

        Raises:
            LoadCancelledError: the save was cancelled.
            StreamerError: the file cannot be written.
        """
        part_bytes = part_bytes_for(size_bytes)
        upload: Upload = self._store.begin_upload(path, size_bytes, part_bytes, replaced)
        self._begun.append((path, upload))
        parts = cut(pieces, part_bytes, is_equal=upload.needs_equal_parts)
        send_parts(upload, parts, self._most_parallel, self._note_sent)
        return upload

    def show(self, path: str, upload: Upload, replaced: ObjectInfo | None) -> None:
        """Let one file show up under its name."""
        self._check_wanted()
        upload.finish()
        self._begun = [each for each in self._begun if each[1] is not upload]
        self._shown = [each for each in self._shown if each[0] != path]
        if replaced is None:
            self._shown.append((path, lambda: self._store.remove(path)))

    def keep_shown(self, *, failure: str | None = None, stale: str | None = None) -> None:
        """Keep what has shown up, whatever comes.

        Args:
            failure: How the message of an error begins from now on.
            stale: A file that does not fit what has shown up. If an error comes before the file is
                replaced, the file is removed.
        """
        self._shown = [] if stale is None else [(stale, lambda: self._store.remove(stale))]
        self._failure = failure or self._failure

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if error is None:
            return
        left = self._removed()
        if isinstance(error, StorageError):
            error.message = f"{self._failure}: {error.message}"
        if left and isinstance(error, StreamerError):
            listed = f"Could not be removed: {', '.join(map(quoted, left))}"
            error.hint = f"{error.hint}. {listed}" if error.hint else listed
        elif left:
            _log.warning("a save that failed could not remove %s", ", ".join(map(quoted, left)))

    def _removed(self) -> list[str]:
        """Remove what was written; return the names of the files that could not be removed."""
        left = []
        steps = [*reversed(self._shown), *((path, upload.abort) for path, upload in self._begun)]
        for path, remove in steps:
            try:
                remove()
            except StreamerError as error:
                _log.debug("%s could not be removed: %s", path, error)
                left.append(path.rpartition("/")[2])
        return list(dict.fromkeys(left))

    def _note_sent(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        self._progress.update(lambda: self.sent_bytes)
        self._check_wanted()

    def _check_wanted(self) -> None:
        if self._is_cancelled.is_set():
            raise LoadCancelledError("the save was cancelled")
