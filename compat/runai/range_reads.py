"""One read of the engine for the ranges of some requests: every range is answered, unless the streamer is ended."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from streamer import _native
from streamer.compat.runai.codes import Code, code_of
from streamer.compat.runai.objects import Objects
from streamer.compat.runai.submissions import Range
from streamer.core.engine.plan import Item, ReadPlan, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    LoadCancelledError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    StreamerError,
    TruncatedError,
)
from streamer.core.options.settings import Settings
from streamer.core.store.sources import FileSource, PythonSource

__all__ = ["Reading"]

# Errors of one object. Any other error would probably also occur for the next object of the same storage.
_OF_ONE_OBJECT = (AccessDeniedError, ChangedError, ObjectNotFoundError, RangeResponseError, TruncatedError)

_log = logging.getLogger("streamer")

# Opens a session that is closed when the streamer ends, or after the block.
OpenSession = Callable[[Sequence[SourceObject], ReadPlan, Settings], AbstractContextManager[ReadSession]]


class Reading:
    """Reads ranges and answers them.

    Args:
        objects: The files of the streamer.
        settings: How to read.
        open_session: Opens a session of the engine.
        answer: Called once for each range, with its code.
    """

    def __init__(
        self,
        objects: Objects,
        settings: Settings,
        open_session: OpenSession,
        answer: Callable[[Range, Code], None],
    ) -> None:
        self._objects, self._settings = objects, settings
        self._open_session, self._answer = open_session, answer

    def read(self, ranges: Iterable[Range]) -> None:
        """Read ranges, and answer each.

        Raises:
            LoadCancelledError: the streamer was ended; the remaining ranges are not answered.
        """
        left = list(ranges)
        found = self._objects.found((each.path for each in left), self._settings)
        while left:
            self._fail({path: each for path, each in found.items() if isinstance(each, StreamerError)}, left)
            sources = {path: each for path, each in found.items() if isinstance(each, SourceObject)}
            left = [each for each in left if each.path in sources and self._is_inside(each, sources[each.path])]
            if not left:
                return
            try:
                self._read(sources, left)
            except LoadCancelledError:
                raise
            except StreamerError as error:
                found = {**sources, **dict.fromkeys(_failed_with(error, sources), error)}

    def _read(self, sources: dict[str, SourceObject], left: list[Range]) -> None:
        """Read the ranges in `left`, and remove those that were answered."""
        paths = list(dict.fromkeys(each.path for each in left))
        numbers = {path: number for number, path in enumerate(paths)}
        objects = [sources[path] for path in paths]
        wanted = sorted(left, key=lambda each: (each.submission, numbers[each.path], each.begin))
        items = [
            Item(number, each.begin, each.end, _target(objects[number], each))
            for each in wanted
            for number in (numbers[each.path],)
        ]
        answered: set[Range] = set()
        try:
            plan = plan_reads(items, self._settings.coalesce_gap_bytes)
            with self._open_session(objects, plan, self._settings) as session:
                while arrived := session.next_items():
                    for item in arrived:
                        memory = session.take(item)
                        if memory is not None:
                            _copy(memory, wanted[item].target)
                        answered.add(wanted[item])
                        self._answer(wanted[item], Code.SUCCESS)
                self._objects.pin(paths, session.pinned())
        finally:
            left[:] = [each for each in left if each not in answered]

    def _is_inside(self, wanted: Range, source: SourceObject) -> bool:
        if wanted.end <= source.size_bytes:
            return True
        error = TruncatedError(
            "the object ends before the range that was asked for",
            uri=source.uri,
            byte_range=(wanted.begin, wanted.end),
            object_size=source.size_bytes,
            hint="Upload or download the file again, or ask for ranges that it has",
        )
        _log.error("%s", error)
        self._answer(wanted, Code.END_OF_FILE)
        return False

    def _fail(self, failed: dict[str, StreamerError], left: list[Range]) -> None:
        for error in dict.fromkeys(failed.values()):
            _log.error("%s", error)
        for each in left:
            if each.path in failed:
                self._answer(each, code_of(failed[each.path]))


def _target(source_object: SourceObject, wanted: Range) -> int:
    """Return the address to read to; 0 for Python sources: a call that hangs may write later, so bytes are copied."""
    return 0 if isinstance(source_object.source, PythonSource) else wanted.target


def _copy(memory: _native.Memory, target: int) -> None:
    content = np.frombuffer(memoryview(memory), np.uint8)
    ctypes.memmove(target, content.ctypes.data, content.nbytes)


def _failed_with(error: StreamerError, sources: dict[str, SourceObject]) -> list[str]:
    own = [path for path, each in sources.items() if each.uri == error.uri]
    is_of_files = bool(own) and all(isinstance(sources[path].source, FileSource) for path in own)
    if own and (isinstance(error, _OF_ONE_OBJECT) or (is_of_files and isinstance(error, StorageError))):
        return own
    return list(sources)
