"""Reads the requests of one streamer, on its own threads: every range is answered, unless the streamer is ended.

Two reads run at a time, so that the second begins while the first ends. Requests that arrive meanwhile are read
together by the next read. A thread lives as long as there are requests. Guarantees: after `end` returns, nothing writes
to the caller's memory. It does not wait for a storage that does not answer a look-up.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np

from streamer import _native
from streamer.compat.runai.submissions import Code, FileLookup, Range, code_of
from streamer.compat.runai.variables import options_from_environment
from streamer.core.conditions import Condition
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, ReadPlan, plan_reads
from streamer.core.engine.session import ReadSession
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
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings, resolve
from streamer.core.store.sources import FileSource, PythonSource

__all__ = ["Reading", "RequestReader"]

# Errors of one object. Any other error would probably also occur for the next object of the same storage.
_OF_ONE_OBJECT = (AccessDeniedError, ChangedError, ObjectNotFoundError, RangeResponseError, TruncatedError)

_log = OwnLogger()

# Opens a session that is closed when the streamer ends, or after the block.
OpenSession = Callable[[Sequence[SourceObject], ReadPlan, Settings], AbstractContextManager[ReadSession]]

AT_A_TIME = 2
JOIN_S = 1.0  # a thread in a look-up may outlive it: it does not use the caller's memory


AnswerRange = Callable[[int, int, int, int], None]  # submission, file, range and code
AnswerRest = Callable[[int, int], None]  # submission and code


class Reading:
    """Reads ranges and answers them."""

    def __init__(
        self,
        objects: FileLookup,
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
            "the object ends before the end of the requested range",
            uri=source.uri,
            byte_range=(wanted.begin, wanted.end),
            object_size=source.size_bytes,
            hint="Upload or download the file again, or request ranges that it has",
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


class RequestReader:
    """Reads the requests of one streamer."""

    def __init__(self, answer: AnswerRange, answer_rest: AnswerRest) -> None:
        self._answer, self._answer_rest = answer, answer_rest
        self._objects = FileLookup()
        self._changed = Condition()
        self._waiting: dict[int, list[Range]] = {}  # by request; `_changed` guards this and all below
        self._threads: list[threading.Thread] = []
        self._sessions: set[ReadSession] = set()
        self._is_ended = False

    def set_credentials(self, credentials: Mapping[str, str]) -> Code:
        """Set credentials; refuse them if other credentials were set before."""
        with self._changed:
            if self._objects.credentials and credentials != self._objects.credentials:
                return Code.OTHER_CREDENTIALS
            self._objects.credentials = credentials
        return Code.SUCCESS

    @property
    def credentials(self) -> Mapping[str, str]:
        """The credentials of `set_credentials`."""
        return self._objects.credentials

    def request(self, submission: int, ranges: list[Range]) -> Code:
        """Queue ranges; they are read as soon as a thread is free."""
        with self._changed:
            if self._is_ended:
                return Code.FINISHED
            self._waiting[submission] = ranges
            if len(self._threads) < AT_A_TIME:
                thread = threading.Thread(target=self._work, name=f"streamer-runai{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return Code.SUCCESS

    def end(self) -> None:
        """Stop reading; when it returns, nothing writes to the caller's memory."""
        with self._changed:
            self._is_ended = True
            self._waiting.clear()
            sessions, threads = list(self._sessions), list(self._threads)
        for session in sessions:
            session.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions)
        for thread in threads:
            thread.join(JOIN_S)

    def _work(self) -> None:
        while requests := self._next_requests():
            code = Code.UNKNOWN
            try:
                settings = replace(resolve(options_from_environment()), began=None)
                reading = Reading(self._objects, settings, self._session, self._answer_one)
                reading.read(each for ranges in requests.values() for each in ranges)
            except LoadCancelledError:
                code = Code.FINISHED
            except BaseException:
                _log.exception("reading for Run:ai's interface failed")
            for submission in requests:  # does nothing for requests whose ranges were all answered
                self._answer_rest(submission, code)

    def _next_requests(self) -> dict[int, list[Range]]:
        with self._changed:
            requests, self._waiting = self._waiting, {}
            if not requests:
                self._threads.remove(threading.current_thread())
            return requests

    def _answer_one(self, wanted: Range, code: Code) -> None:
        self._answer(wanted.submission, wanted.file, wanted.position, code)

    @contextmanager
    def _session(self, objects: Sequence[SourceObject], plan: ReadPlan, settings: Settings) -> Iterator[ReadSession]:
        with self._changed:
            if self._is_ended:
                raise LoadCancelledError("the streamer was ended before it was read")
            session = ReadSession(objects, plan, settings, items="ranges")
            self._sessions.add(session)
        try:
            yield session
        finally:
            session.close()
            with self._changed:
                self._sessions.discard(session)
                self._changed.notify_all()
