"""Makes native sessions from objects, a plan and settings, and renews the credentials or URLs of their objects.

Guarantees: no request is made before the session starts, except for the addresses of an NFS server; no thread is
started without work for it. Renewal happens on the consumer's thread. A request for credentials is retried like a
request to the storage, so that a load outlasts an outage of either server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamer import _native
from streamer.core.engine.plan import CachedObject, ReadPlan
from streamer.core.engine.tuning import (
    FileReading,
    choose_file_reading,
    choose_http_reading,
    choose_nfs_threads,
    choose_pinned_bytes,
)
from streamer.core.errors import ConnectError, CredentialsError, StreamerError
from streamer.core.options.machine import sharers
from streamer.core.options.settings import Settings
from streamer.core.quoting import printable
from streamer.core.store.sources import (
    AnswerChecksum,
    FileSource,
    HttpSource,
    NfsSource,
    PythonSource,
    Source,
    header_lines,
)

if TYPE_CHECKING:
    from streamer import _native

CHOSEN_FOR_A_PLAN = {"file_threads", "gpudirect", "http_reactors", "http_in_flight", "nfs_threads", "pinned_bytes"}
_AS_SET = [
    name
    for name in Settings.__dataclass_fields__
    if hasattr(_native.SessionOptions, name) and name not in CHOSEN_FOR_A_PLAN
]
RENEW_AFTER = 0.8  # of a signature's lifetime; the rest is for answers that are slow


@dataclass(frozen=True)
class SourceObject:
    """One object as the engine reads it."""

    uri: str  # the object's URI for messages, without secrets
    source: Source  # where the bytes of the object are
    size_bytes: int  # size of the object; the engine refuses an object of another size
    version: str = ""  # the version that `ReadSession.pinned` returned after an earlier session, or empty
    compares_answers: bool = False  # request checksums of the answers if the server sends them, and compare them
    server: str = ""  # the store's name of its server; empty without a server
    stored_version: str | None = None  # the version in the store's description before anything was read, or None
    # The object's place in a cache of this machine, or None
    cache: CachedObject | None = field(default=None, repr=False, compare=False)
    is_of_cache: bool = False  # the object is a file of that cache, to which other processes may be writing
    # As of `streamer.core.store.identities`: what decides the bytes, beside the version
    identity: str = field(default="", repr=False)
    is_settled: bool = True  # whether the version tells these bytes from any others, so that they may be kept under it
    # The URI with the object's whole name, if `uri` lacks a part of it (`whole_name`)
    name: str = field(default="", repr=False)

    @property
    def version_for_all(self) -> str:
        """The version as every machine sees it: without a file's device number, which differs between machines."""
        return self.version.partition("-")[2] if isinstance(self.source, FileSource) else self.version


def make_engine(
    objects: Sequence[SourceObject], plan: ReadPlan, settings: Settings, in_item_order: bool
) -> _native.Session:
    """Make the native session, and add every object in the order of the numbers in the plan."""
    kinds = {type(each.source) for each in objects}
    block_bytes = settings.http_first_block_bytes if HttpSource in kinds else settings.file_block_bytes
    # A thread without work is not started: reading one tensor must not start thirty threads.
    blocks = max(1, plan.span_bytes // block_bytes + plan.span_count)
    devices, neighbours = len(plan.cuda_devices), sharers()
    sizes = [(each.source, each.size_bytes) for each in objects]
    files = choose_file_reading(sizes, settings, plan.span_bytes, blocks, devices=devices, sharers=neighbours)
    http = choose_http_reading(settings, plan.span_bytes, blocks, sharers=neighbours)
    options = _native.SessionOptions()
    for knob in _AS_SET:
        setattr(options, knob, getattr(settings, knob))
    options.in_item_order = in_item_order
    options.trace_events = 0 if settings.tracer is None else settings.tracer.most_events
    options.file_threads = files.threads
    options.gpudirect = files.gpudirect
    options.pinned_bytes = choose_pinned_bytes(
        settings,
        reads_only_files=all(isinstance(each.source, FileSource) and not each.source.is_remote for each in objects),
        file_threads=files.threads,
        devices=devices,
        sharers=neighbours,
    )
    options.http_reactors = http.reactors
    options.http_in_flight = http.in_flight
    options.http_blocks_follow_server = settings.http_first_block_bytes < settings.http_block_bytes
    options.nfs_threads = min(choose_nfs_threads(settings, plan.span_bytes), blocks)
    engine = _native.Session(options)
    for number, each in enumerate(objects):
        _add(engine, each, files, uses_ring=settings.io_uring is not False)
        if each.compares_answers and isinstance(each.source, HttpSource) and each.source.answer_checksum:
            _compare_answers(engine, number, each.source.answer_checksum)
        if each.cache is not None and each.cache.is_written:
            engine.write_to_cache(number, each.cache.entry, each.cache.may_wait)
    return engine


def _add(engine: _native.Session, source_object: SourceObject, files: FileReading, *, uses_ring: bool) -> None:
    source = source_object.source
    if isinstance(source, FileSource):
        is_direct, is_partly_cached = source.path in files.direct_paths, source.path in files.partly_cached_paths
        path, inside = os.fsencode(source.path), os.fsencode(source.inside or "")  # names need not be text
        version = source_object.version
        how = (is_direct, is_partly_cached, files.is_shared, uses_ring)
        is_written = source_object.is_of_cache
        engine.add_file(path, source_object.size_bytes, version, inside, *how, is_being_written=is_written)
    elif isinstance(source, HttpSource):
        version_header = source.version_header or ""
        version = (source_object.version or source.version or "") if version_header else ""
        target = http_target(source)
        engine.add_http(target, source_object.size_bytes, version, version_header, source.refresh is not None)
    elif isinstance(source, NfsSource):
        try:
            engine.add_nfs(source.url, source_object.size_bytes, source_object.version)
        except ValueError as error:  # our backend checks its URLs; a plug-in's may be malformed
            raise ConnectError(
                f"no connection to the NFS server: {error}",
                uri=source_object.uri,
                hint="Expected nfs://server/export/path",
            ) from None
    else:
        assert isinstance(source, PythonSource)
        engine.add_python(printable(source_object.uri))  # names of files need not be UTF-8


def _compare_answers(engine: _native.Session, number: int, checksum: AnswerChecksum) -> None:
    engine.compare_answers(
        number,
        request_header=": ".join(checksum.request_header),
        answer_header=checksum.answer_header,
        algorithm=checksum.algorithm,
        is_least_significant_first=checksum.byte_order == "little",
        max_bytes=checksum.max_bytes,
    )


def http_target(source: HttpSource) -> _native.HttpTarget:
    """Convert an HTTP source for the engine, with the time at which its credentials are renewed."""
    from streamer.core.store.certificates import default_ca_file  # noqa: PLC0415 (as above)

    now_s = time.time()
    expires_at_s = source.expires_at_s or 0.0
    renew_at_s = now_s + (expires_at_s - now_s) * RENEW_AFTER if expires_at_s and source.refresh else 0.0
    return _native.HttpTarget(
        url=source.url,
        headers=header_lines(source.headers),
        ca_file=source.ca_file or default_ca_file(),
        proxy=source.proxy or "",
        expires_at_s=expires_at_s,
        renew_at_s=renew_at_s,
        is_redirect=source.is_redirect,
        client_cert=source.client_cert or "",
        client_key=source.client_key or "",
        offset_bytes=source.offset_bytes,
        whole_bytes=source.whole_bytes or 0,
        checks_host=source.checks_host,
    )


PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class Renewals:
    """The renewals of one session."""

    def __init__(self, engine: _native.Session, objects: Sequence[SourceObject], deadline_s: float) -> None:
        self._engine, self._objects, self._deadline_s = engine, objects, deadline_s
        self._waiting: dict[int, _Attempts] = {}  # by object

    def renew(self, sources: Iterable[int]) -> None:
        """Renew these objects, and all objects whose retry is due."""
        for source in sources:
            self._waiting.setdefault(source, _Attempts())
        now = time.monotonic()
        for source, attempts in list(self._waiting.items()):
            if attempts.due <= now:
                self._renew(source, attempts)

    def _renew(self, source: int, attempts: _Attempts) -> None:
        expired = self._objects[source].source
        assert isinstance(expired, HttpSource)
        assert expired.refresh is not None
        try:
            target = http_target(expired.refresh())
        except StreamerError as error:
            from streamer.core.outages.outage_waits import LIMIT_OF_LOGIN_S  # noqa: PLC0415 (files have no server)
            from streamer.core.outages.transient import is_transient  # noqa: PLC0415 (as above)

            is_of_login = isinstance(error, CredentialsError)
            limit_s = min(self._deadline_s, LIMIT_OF_LOGIN_S) if is_of_login else self._deadline_s
            if not is_transient(error) or attempts.seconds > limit_s:
                raise
            attempts.delay()
        else:
            del self._waiting[source]
            self._engine.renew(source, target)


class _Attempts:
    def __init__(self) -> None:
        self._began = self.due = time.monotonic()
        self._pause_s = PAUSE_S

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def delay(self) -> None:
        self.due = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
