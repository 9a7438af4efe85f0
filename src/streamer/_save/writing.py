"""Writes the files of one save: sends all bytes, and then lets the files show up one by one.

Guarantees: after an error or an interrupt, all written files are removed, except those that another program has
replaced meanwhile. The error or the log names files that could not be removed. Several files are sent at a time;
progress is reported on the caller's thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

from streamer._progress import Progress
from streamer._save.parts import PART_BYTES, SentFile, cut, part_bytes_for
from streamer._save.saved_tensors import MOST_READ_BYTES
from streamer.core.conditions import Event
from streamer.core.errors import ChangedError, LoadCancelledError, StorageError, StreamerError, UsageError
from streamer.core.log import OwnLogger
from streamer.core.options.arguments import check_destination
from streamer.core.options.settings import Settings
from streamer.core.quoting import quoted
from streamer.core.secrets.redact import redact
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.part_sender import PartSender
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import (
    MOST_PARALLEL_PARTS,
    CommittingStore,
    RereadingUpload,
    ResumingStore,
    UploadingStore,
)
from streamer.core.store.versioned_uploads import owning
from streamer.core.store.versions import is_same_version

_log = OwnLogger()

MOST_FILES = 8  # at a time: small files wait for their first and last request, not for their bytes
# Memory that a part in flight may need, in parts: the part itself, if several tensors meet in it, and copies of it
# on the way to the network.
COPIES_OF_PART = 3


def most_parallel(memory_limit_bytes: int) -> int:
    """Return how many parts may be sent at a time."""
    return max(1, min(MOST_PARALLEL_PARTS, memory_limit_bytes // (COPIES_OF_PART * PART_BYTES)))


def uploading_store(store: Store, uri: str) -> UploadingStore:
    """Return the store, typed as a store that can be written; refuse a URI that is a mistake."""
    check_destination(uri)
    if isinstance(store, CommittingStore):
        store.prepare()
    if isinstance(store, UploadingStore):
        return store
    hint = "Save to a disk or an object store, and publish it from there"
    raise UsageError("this storage cannot be written", uri=redact(uri), hint=hint)


@contextmanager
def quiet_writing(store: Store, uri: str, settings: Settings, *, resumes: bool = False) -> Iterator[Writing]:
    """Write files for another library. No progress is shown, as the library shows its own, and no save is cancelled."""
    with (
        Progress(False, 0, "") as progress,
        Writing(uploading_store(store, uri), settings, progress, Event(), resumes=resumes) as writing,
    ):
        yield writing


class Writing:
    """A context manager around the writing of some files."""

    def __init__(
        self,
        store: Any,
        settings: Settings,
        progress: Progress,
        is_cancelled: Event,
        *,
        failure: str = "not saved",
        resumes: bool = False,
    ) -> None:
        self._store, self._progress, self._is_cancelled = store, progress, is_cancelled
        # Maximum number of parts that may be sent at a time.
        self.most_parallel = most_parallel(settings.memory_limit_bytes)
        self._traced = partial(settings.traced, "upload", "send a part")
        self._guard = threading.Lock()  # of the next three: several threads finish files
        self._begun: list[tuple[str, OwningUpload]] = []
        self._shown: list[tuple[str, Callable[[], None]]] = []  # files that no older checkpoint had
        self._unconfirmed: list[OwningUpload] = []
        self._naming: tuple[str, OwningUpload] | None = None
        self._stale: list[ObjectInfo] = []  # files that do not match those that have shown up
        # Path of a file that leads readers to the older files. After an error it goes only with all others; if another
        # program saves here, it stays, because that one may build on it.
        self.guarding, self._is_shared = "", False
        self._failure, self._resumes = failure, resumes
        self._process = os.getpid()
        self.sent_bytes = 0  # bytes that were sent
        self.commits = isinstance(store, CommittingStore)  # whether nothing shows up before `complete`

    def send(
        self, path: str, size_bytes: int, pieces: Iterable[memoryview], replaced: ObjectInfo | None
    ) -> OwningUpload:
        """Send all bytes of one file, which shows up when `show` is called."""
        with PartSender(self.most_parallel, self._traced) as sender:
            return self._sent(SentFile(path, size_bytes, pieces, replaced), sender, self.note_sent)

    def send_all(self, files: Sequence[SentFile], on_sent: Callable[[int, OwningUpload], None]) -> None:
        """Send the bytes of several files, at the same time if the memory allows it."""
        news: SimpleQueue[Callable[[], None]] = SimpleQueue()

        def note(size_bytes: int) -> None:
            news.put(partial(self.note_sent, size_bytes))

        def job(number: int) -> Callable[[], Callable[[], None]]:
            return lambda: partial(on_sent, number, self._sent(files[number], sender, note))

        with PartSender(self.most_parallel, self._traced) as sender:
            jobs = [(each.held_bytes, job(number)) for number, each in enumerate(files)]
            _in_threads(jobs, news, stop=sender.close)

    def show(self, path: str, upload: OwningUpload, replaced: ObjectInfo | None, *, names_others: bool = False) -> None:
        """Let one file show up under its name, and look at it; raises as `send` and `confirm`."""
        self._check_wanted()
        if names_others:
            self._naming = path, upload
        try:
            upload.finish()
            self._note_shown(path, upload, replaced)
            upload.confirm()
        except ChangedError:
            self._is_shared = True
            raise
        self._stale = [each for each in self._stale if each.path != path]

    def show_all(self, files: Sequence[tuple[str, OwningUpload, ObjectInfo | None]]) -> None:
        """Let several files show up, in any order, which `confirm` looks at; raises as `send`."""

        def job(path: str, upload: OwningUpload, replaced: ObjectInfo | None) -> Callable[[], None]:
            upload.finish()
            self._note_shown(path, upload, replaced)  # at once: after a failure of another job, no call follows
            return _nothing

        self._check_wanted()
        _in_threads([(0, partial(job, *each)) for each in files], SimpleQueue(), stop=_nothing)

    def confirm(self) -> None:
        """Look at the files that have shown up since the last call, also at those that `show` has looked at before.

        It costs a request for each file, eight at a time.
        """

        def job(upload: OwningUpload) -> Callable[[], None]:
            upload.confirm()
            return _nothing

        uploads, self._unconfirmed = self._unconfirmed, []
        _in_threads([(0, partial(job, each)) for each in uploads], SimpleQueue(), stop=_nothing)

    def complete(self) -> None:
        """Make the commit of a store that has them: its files show up, and those to be removed go."""
        if not self.commits:
            return
        try:
            self._store.commit()
        except StorageError:
            if any(upload.may_stand() for upload in self._unconfirmed):
                self._failure = "it is not known whether the files are there"
            raise

    def keep_shown(self, *, failure: str | None = None, stale: ObjectInfo | None = None) -> None:
        """Keep the files that have shown up, even if an error follows."""
        if self.commits:
            return
        self._naming, self._shown, self._stale = None, [], [stale] if stale is not None else []
        self._failure = failure or self._failure

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        if error is None or os.getpid() != self._process:  # in a forked process, the files are those of the parent
            return
        if self._naming is not None and not self._is_withdrawn(*self._naming):
            self._begun = [each for each in self._begun if each[1] is not self._naming[1]]
            self._shown, self._failure = [], "it is not known whether the checkpoint is saved"
            if isinstance(error, StreamerError):
                error.hint = f"{error.hint or ''}. No file was removed: load it, and if that fails, save again".lstrip(
                    ". "
                )
        left = self._removed()
        if isinstance(error, StorageError):
            error.message = f"{self._failure}: {error.message}"
        if left and isinstance(error, StreamerError):
            listed = f"Could not be removed: {', '.join(map(quoted, left))}"
            error.hint = f"{error.hint}. {listed}" if error.hint else listed
        elif left:
            _log.warning("a save that failed could not remove %s", ", ".join(map(quoted, left)))

    def begin(self, path: str, size_bytes: int, replaced: ObjectInfo | None) -> OwningUpload:
        """Begin one file, which is removed after an error."""
        if replaced is not None and replaced.version is None:  # a listing may lack what tells the new file from the old
            replaced = info_if_present(self._store, path) or replaced
        does_resume = self._resumes and isinstance(self._store, ResumingStore)
        begin = self._store.resume_upload if does_resume else self._store.begin_upload
        upload = owning(begin(path, size_bytes, part_bytes_for(size_bytes), replaced), self._store, path, replaced)
        with self._guard:
            self._begun.append((path, upload))
        return upload

    def note_sent(self, size_bytes: int) -> None:
        """Note that bytes were sent, on the caller's thread."""
        self.sent_bytes += size_bytes
        self._progress.update(lambda: self.sent_bytes)
        self._check_wanted()

    def _sent(self, file: SentFile, sender: PartSender, on_sent: Callable[[int], None]) -> OwningUpload:
        upload = self.begin(file.path, file.size_bytes, file.replaced)
        if isinstance(upload, RereadingUpload) and not isinstance(file.pieces, Iterator):

            def note(size_bytes: int) -> None:
                sender.check_open()
                on_sent(size_bytes)

            upload.read(file.pieces, note)
            return upload
        parts = cut(file.pieces, part_bytes_for(file.size_bytes), is_equal=upload.needs_equal_parts)
        sender.send(upload, parts, on_sent)
        return upload

    def _note_shown(self, path: str, upload: OwningUpload, replaced: ObjectInfo | None) -> None:
        with self._guard:
            self._begun = [each for each in self._begun if each[1] is not upload]
            self._shown = [each for each in self._shown if each[0] != path]
            self._unconfirmed.append(upload)
            if replaced is None:
                self._shown.append((path, upload.withdraw))

    def _remove_unchanged(self, file: ObjectInfo) -> None:
        found = info_if_present(self._store, file.path)
        if found is not None and (file.version is None or is_same_version(file.version, found.version)):
            self._store.remove(file.path)

    def _is_withdrawn(self, path: str, upload: OwningUpload) -> bool:
        """Remove the file that names the others, if it was not there before; say whether it certainly is not there."""
        if not upload.may_stand():
            return True
        begun = {path: begun.abort for path, begun in self._begun}
        try:
            {**begun, **dict(self._shown)}.get(path, _nothing)()
        except StreamerError:
            return False
        return not upload.may_stand()

    def _removed(self) -> list[str]:
        """Remove the written files; return the names of the files that could not be removed."""
        left: list[str] = []
        steps = [*reversed(self._shown), *((path, upload.abort) for path, upload in self._begun)]
        steps += [(each.path, partial(self._remove_unchanged, each)) for each in self._stale]
        for path, remove in steps:
            if path == self.guarding and (
                left or self._is_shared
            ):  # readers would take what is left for the checkpoint
                continue
            try:
                remove()
            except StreamerError as error:
                _log.debug("%s could not be removed: %s", path, error)
                left.append(path.rpartition("/")[2])
        return list(dict.fromkeys(left))

    def _check_wanted(self) -> None:
        if self._is_cancelled.is_set():
            raise LoadCancelledError("the save was cancelled")


def _in_threads(
    jobs: Sequence[tuple[int, Callable[[], Callable[[], None]]]],
    news: SimpleQueue[Callable[[], None]],
    *,
    stop: Callable[[], None],
) -> None:
    """Run jobs at the same time, and wait for all of them, also after a failure."""
    threads: list[threading.Thread] = []
    held: dict[int, int] = {}
    began = 0

    def run(number: int) -> None:
        try:
            news.put(partial(note, number, jobs[number][1]()))
        except BaseException as error:
            news.put(partial(_raise, error))

    def note(number: int, result: Callable[[], None]) -> None:
        del held[number]
        result()

    try:
        while held or began < len(jobs):
            while began < len(jobs) and _fits(held, jobs[began][0]):
                held[began] = jobs[began][0]
                thread = threading.Thread(target=run, args=(began,), name=f"streamer-send{began}", daemon=True)
                thread.start()
                threads.append(thread)
                began += 1
            news.get()()
        while not news.empty():
            news.get()()
    except BaseException:
        stop()
        raise
    finally:
        for thread in threads:
            thread.join()


def _fits(held: dict[int, int], more_bytes: int) -> bool:
    """Whether another file may be sent at the same time; memory has room for only one large tensor."""
    return not held or (len(held) < MOST_FILES and sum(held.values()) + more_bytes <= MOST_READ_BYTES)


def _nothing() -> None:
    """Do nothing."""


def _raise(error: BaseException) -> None:
    raise error
