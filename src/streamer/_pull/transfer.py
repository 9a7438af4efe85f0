"""Reads the missing bytes of many files in one session of the engine, and has them written while it reads on.

Guarantees: memory is bounded, however many and large the files are. Each file is of one version, and compared with its
storage's digest where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from streamer._pull.ahead import Ahead
from streamer._pull.digesting import FileDigests
from streamer._pull.part import Part
from streamer._pull.pieces import cut
from streamer._pull.writers import Writers
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import ChangedError
from streamer.core.options.settings import Settings
from streamer.core.store.parallel import in_parallel
from streamer.core.store.sources import FileSource, NfsSource, ObjectInfo, Store

__all__ = ["Incoming", "transfer"]

AHEAD_BYTES = 256 << 20  # read and not yet written; the pieces that wait for a thread come on top: 64 MiB


@dataclass(frozen=True)
class Incoming:
    """One file to read.

    Attributes:
        info: As its storage describes it.
        source_object: Where its bytes are.
        part: Where they go.
        digests: Of its bytes.
        kept_bytes: How many an earlier run has left, which are read again for the digests.
    """

    info: ObjectInfo
    source_object: SourceObject
    part: Part
    digests: FileDigests
    kept_bytes: int

    @property
    def checked_bytes(self) -> int:
        """How many of the kept bytes have been read again."""
        return min(self.digests.position_bytes, self.kept_bytes)

    def write(self, data: memoryview) -> None:
        """Write the next bytes; raises as `Part.write`."""
        self.part.write(data, self.digests)

    def close(self) -> None:
        """Close the file."""
        self.part.close()

    def finish(self) -> None:
        """Verify and flush the file; raises as `Part.finish`."""
        self.part.finish(self.digests)


def transfer(
    files: Sequence[Incoming],
    store: Store,
    settings: Settings,
    on_progress: Callable[[Callable[[], int]], None],
    on_wait: Callable[[str], None],
) -> None:
    """Read all bytes that are missing, and finish all files.

    Args:
        files: To read.
        store: Of the files.
        settings: How to read.
        on_progress: As for `ReadSession`; kept bytes count once they are read again.
        on_wait: As for `ReadSession`.

    Raises:
        ChangedError: a file was replaced meanwhile.
        ChecksumError: the bytes mismatch the storage's digest.
        StorageError: and its kinds, from the storage.
        OSError: a file cannot be written.
    """
    items = cut([(each.part.offset, each.source_object.size_bytes) for each in files])
    objects = [each.source_object for each in files]
    most_bytes = min(settings.memory_limit_bytes, AHEAD_BYTES)
    ahead = Ahead(most_bytes, time.monotonic())
    own = replace(settings, memory_limit_bytes=most_bytes, first_memory_limit_bytes=ahead.bytes)
    shown = _Shown(files, on_progress)
    with Writers(files, shown.again) as writers:
        for number, each in enumerate(files):
            if each.part.offset == each.source_object.size_bytes:  # empty, or only its end was not seen
                writers.put(number, None)
        if items:
            plan = plan_reads(items, 0)
            session = ReadSession(
                objects, plan, own, in_item_order=True, on_progress=shown.update, on_wait=on_wait, items="pieces"
            )
            with closing(session):
                _write(session, writers, files, items, ahead)
            shown.update(lambda: plan.span_bytes)
        writers.finish()
    _check_unchanged(files, store)


class _Shown:
    """Shows what is done while bytes are read, and while nothing is: a part of many gigabytes takes its time."""

    def __init__(self, files: Sequence[Incoming], on_progress: Callable[[Callable[[], int]], None]) -> None:
        self._files, self._on_progress = files, on_progress
        self._count_read: Callable[[], int] = lambda: 0

    def update(self, count_read: Callable[[], int]) -> None:
        self._count_read = count_read
        self.again()

    def again(self) -> None:
        self._on_progress(lambda: self._count_read() + sum(each.checked_bytes for each in self._files))


def _write(session: ReadSession, writers: Writers, files: Sequence[Incoming], items: list[Item], ahead: Ahead) -> None:
    while arrived := session.next_items():
        for item in arrived:
            number, _, end, *_ = items[item]
            memory = session.take(item)
            assert memory is not None
            if ahead.count(len(memoryview(memory)), time.monotonic()):
                session.set_memory_limit(ahead.bytes)
            writers.put(number, memoryview(memory))
            if end == files[number].source_object.size_bytes:
                writers.put(number, None)


def _check_unchanged(files: Sequence[Incoming], store: Store) -> None:
    """Look again at files of a disk: what was read is of the time between the two looks.

    A server compares the version itself, and a source in Python confirms its own.
    """
    looked_at = [each for each in files if isinstance(each.source_object.source, (FileSource, NfsSource))]

    def look(each: Incoming) -> None:
        now = store.info(each.info.path)
        if (now.version, now.size_bytes) != (each.info.version, each.info.size_bytes):
            each.part.discard()
            raise ChangedError(
                f"the file was replaced while it was pulled: version {each.info.version} became {now.version}",
                uri=each.info.uri,
                hint="Pull again",
            )

    in_parallel(look, looked_at, role="look")
