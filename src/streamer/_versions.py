"""Published versions: a folder for each, and beside them a small file, the pointer, that lists them in their order.

`streamer.publish` reads the pointer, ``run/latest``, and replaces it only if nobody else has replaced it meanwhile.
So the order of the versions is that of these writes, whatever the clocks say, and every reader finds one that is whole.
``run@latest`` stands for the folder that the pointer names last, ``run@NAME`` for the folder ``run/NAME``.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer._locate_shards import opened_store
from streamer.core.conditions import Event
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    FormatError,
    ObjectNotFoundError,
    StreamerError,
    TruncatedError,
    UsageError,
)
from streamer.core.format import strict_json
from streamer.core.log import OwnLogger
from streamer.core.options.settings import Settings, resolve
from streamer.core.outages.transient import is_transient
from streamer.core.request.request import OneUri, Request
from streamer.core.secrets.redact import redact
from streamer.core.shards.shards import source_object
from streamer.core.store.names import path_in, scheme_of
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store

if TYPE_CHECKING:
    from streamer.core.options.options import Options

LATEST = "latest"  # the name of the pointer, and of the version that it names last
FORMAT = "streamer versions"
MOST_BYTES = 1 << 20  # of a pointer
MOST_LISTED = 1000  # versions in a pointer; the folders of older ones stay
MOST_READS = 5  # of a pointer that others write meanwhile
_NAME = r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{8}"
_NAMED = re.compile(rf"(.*[^/@])@({LATEST}|{_NAME})", re.DOTALL)
_IN_BUCKET = re.compile("hf://buckets/[^/]+/[^/]+/.")  # repositories have revisions instead
_log = OwnLogger()


class Version(NamedTuple):
    """One version in a pointer."""

    name: str
    # When the next version was published, in seconds since 1970, by the clock of its publisher; None for the last.
    replaced_at: float | None = None


@dataclass(frozen=True)
class Pointer:
    """The content of a pointer. Pure."""

    versions: tuple[Version, ...]  # in the order in which they were published; a file has at least one
    unwanted: tuple[str, ...] = ()  # versions that are not listed any more, whose files are being removed

    @classmethod
    def parsed(cls, data: bytes, uri: str) -> Pointer:
        """Read a pointer, whose names are no paths.

        Example:
            >>> Pointer.parsed(Pointer((Version("20261128T000000.000000Z-0123abcd"),)).rendered(), "m").unwanted
            ()
        """
        document: Any = None
        try:
            document = strict_json.loads(strict_json.decode_utf8(data))
            versions = tuple(Version(each["name"], each["replaced_at"]) for each in document["versions"])
            found = cls(versions, tuple(document["unwanted"]))
            names = [*(each.name for each in versions), *found.unwanted]
            is_right = document["format"] == FORMAT and document["latest"] == versions[-1].name
            is_right = is_right and all(re.fullmatch(_NAME, each) for each in names) and len({*names}) == len(names)
            is_right = is_right and all(isinstance(each.replaced_at, (int, float)) for each in versions[:-1])
        except (IndexError, KeyError, TypeError, ValueError):
            is_right = False
        if not is_right:
            if isinstance(document, dict) and str(document.get("format")).startswith(f"{FORMAT} "):
                hint = "Use the streamer that wrote it, or a newer one; the folders of the versions can be loaded"
                raise FormatError("this pointer to published versions is of a later format", uri=uri, hint=hint)
            hint = "Publish elsewhere; or if it was one, remove it, and publish again: the folders of the versions stay"
            raise FormatError("this file is no pointer to published versions", uri=uri, hint=hint)
        return found

    def rendered(self) -> bytes:
        """Return the text of the pointer."""
        versions = [each._asdict() for each in self.versions]
        document = {"format": FORMAT, "latest": self.versions[-1].name, "versions": versions, "unwanted": self.unwanted}
        return (json.dumps(document, indent=1) + "\n").encode()

    def with_version(self, name: str, now: float, keep: int | None, grace_s: float) -> Pointer:
        """Add a version; make all but the last `keep` unwanted, if they were replaced more than `grace_s` ago.

        A time that is further ahead than `grace_s` is of a clock that was wrong, and becomes now.
        """
        older = [*self.versions[:-1], *(each._replace(replaced_at=now) for each in self.versions[-1:])]
        spare = older[: max(0, len(older) + 1 - keep)] if keep else []
        dropped = [each.name for each in spare if (each.replaced_at or now) + grace_s <= now]
        kept = [each for each in older if each.name not in dropped][1 - MOST_LISTED :]
        kept = [each._replace(replaced_at=now) if (each.replaced_at or 0) > now + grace_s else each for each in kept]
        return Pointer((*kept, Version(name)), (*self.unwanted, *dropped))


def split(uri: str) -> tuple[str, str] | None:
    """Split a URI that ends in ``@latest`` or ``@NAME`` into its folder and the name; None for any other URI.

    A chained URL is none, as a cache in it may be old, nor is one of a repository of the Hub, a web server's with a
    query, or one whose ``@`` follows a login.

    Example:
        >>> split("s3://b/run@latest"), split("s3://b/run@latest/"), split("https://me@latest"), split("hf://o/n@latest")
        (('s3://b/run', 'latest'), None, None, None)
    """
    found = _NAMED.fullmatch(uri)
    if found is None or "::" in uri or _has_query(uri):
        return None
    if scheme_of(uri) == "hf" and not _IN_BUCKET.match(found[1]):
        return None
    _, is_url, rest = found[1].partition("://")
    return None if is_url and "/" not in rest else (found[1], found[2])


def _has_query(uri: str) -> bool:
    return scheme_of(uri) in {"http", "https"} and "?" in uri


def folder_of_versions(uri: str) -> str:
    """Return the folder of ``run`` or ``run@latest``, if a name can be added to it."""
    if _has_query(uri):
        hint = "Leave out the query (?…); headers and logins go into storage_options="
        raise UsageError("versions have no place at a URL with a query", uri=redact(uri), hint=hint)
    return (split(uri) or (uri, ""))[0].rstrip("/")


def read_pointer(store: Store, settings: Settings) -> tuple[Pointer, ObjectInfo] | None:
    """Read the pointer in the folder of a store; None if there is none."""
    path = path_in(store.root.rstrip("/"), LATEST)
    for attempt in range(MOST_READS):
        info = info_if_present(store, path)
        if info is None:
            return None
        try:
            source = source_object(store, info)
            if source.size_bytes > MOST_BYTES:
                return Pointer.parsed(b"", info.uri), info
            content, _ = read_ranges([source], [(0, 0, source.size_bytes)], settings, what="pointers")
            return Pointer.parsed(bytes(content[0]), info.uri), info
        except (ChangedError, FormatError, ObjectNotFoundError, TruncatedError):  # or half of it, in a poor storage
            if attempt == MOST_READS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def published(uri: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the versions below a folder, in their order."""
    folder, settings = folder_of_versions(uri), resolve(None)
    with opened_store(folder, storage_options, None, settings) as store:
        read = read_pointer(store, settings)
    if read is None:
        hint = f"Its file {LATEST!r} is missing, or may not be read: name the folder that was published to, or publish"
        raise ObjectNotFoundError("no versions are published here", uri=redact(folder), hint=hint)
    return [each.name for each in read[0].versions]


def pinned_uri(uri: str, storage_options: Mapping[str, Any] | None, fs: Any, settings: Settings) -> str:
    """Return the folder that ``run@latest`` or ``run@NAME`` stands for; without a pointer, the URI is a plain name."""
    found = split(uri)
    if found is None:
        return uri
    folder, name = found
    if name == LATEST:
        try:
            with opened_store(folder, storage_options, fs, settings) as store:
                read = read_pointer(store, settings)
        except AccessDeniedError:  # which is also what S3 says of an absent object, if nothing may be listed
            return uri
        if read is None:
            return uri
        name = read[0].versions[-1].name
    return f"{folder}/{name}"


def refuse_version(uri: str, storage_options: Mapping[str, Any] | None, settings: Settings) -> None:
    """Refuse to write to a URI that stands for a published version."""
    if "@" in uri and pinned_uri(uri, storage_options, None, settings) != uri:
        hint = "Publish a new version with streamer.publish, or save elsewhere"
        raise UsageError("this URI stands for a published version, which stays as it is", uri=redact(uri), hint=hint)


def explain_missing(error: ObjectNotFoundError, uris: list[str]) -> None:
    """Say in the error for a ``run@latest`` that was not pinned that there is no pointer."""
    folders = [found[0] for found in map(split, uris) if found is not None]
    if folders:
        more = f"{redact(folders[0])} has no published versions: its file {LATEST!r} is missing, or may not be read"
        error.hint = f"{more}; name the folder of a version, or publish again. {error.hint or ''}".rstrip()


class watch(Iterator[str]):  # noqa: N801  called like a function
    """Yield the folder of the version that `streamer.publish` published last, and then of each newer one.

    If several are published between two looks, only the last is yielded. A look is one small request while nothing
    changes. A failure that passes is logged, and the next look is another attempt. Before the first version is
    published, and while the pointer is gone, the loop waits.

    Args:
        uri: The folder that was passed to `streamer.publish`.
        interval_s: Seconds between two looks.
        timeout_s: The loop ends if no new version comes for so many seconds; None: it ends with `close`, which any
            thread may call.
        storage_options: As for `streamer.load`.
        options: Time-outs of the requests; see `streamer.Options`.

    Raises:
        StorageError: or a subclass: a failure that does not pass, such as a refused login. `FormatError`: the file
            ``latest`` there is no pointer.

    Example:
        >>> for version in streamer.watch("s3://bucket/run", timeout_s=600):            # doctest: +SKIP
        ...     streamer.load_into(version, model)
    """

    def __init__(
        self,
        uri: OneUri,
        *,
        interval_s: float = 10.0,
        timeout_s: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        (text,) = Request(uri=uri, storage_options=storage_options, options=options).uris
        self._folder, (_, name) = folder_of_versions(text), split(text) or ("", LATEST)
        seconds = [interval_s, 0 if timeout_s is None else timeout_s]
        is_right = all(isinstance(each, (int, float)) and each >= 0 for each in seconds) and interval_s > 0
        if name != LATEST or not is_right:
            raise UsageError("watch() takes a folder, an interval above 0 and a timeout", uri=redact(text))
        settings = resolve(options)
        self._settings = replace(settings, block_deadline_s=min(settings.block_deadline_s, max(interval_s, 1.0)))
        self._storage_options, self._interval_s, self._timeout_s = storage_options, interval_s, timeout_s
        self._last: tuple[str, ObjectInfo] | None = None
        self._is_closed = Event()

    def __next__(self) -> str:
        ends_at = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not self._is_closed.is_set():
            name = self._looked()
            if name is not None:
                return f"{self._folder}/{name}"
            left_s = min(self._interval_s, ends_at - time.monotonic())
            if left_s <= 0:
                break
            self._is_closed.wait(left_s)
        raise StopIteration

    def close(self) -> None:
        """End the loop, at the latest when the look that is under way ends."""
        self._is_closed.set()

    def _looked(self) -> str | None:
        """Look once; return the name of the last version if it is a new one."""
        before = self._last
        try:
            with opened_store(self._folder, self._storage_options, None, self._settings) as store:
                is_known = before is not None and before[1].is_settled
                if before and is_known and before[1].is_same_as(info_if_present(store, before[1].path)):
                    return None
                read = read_pointer(store, self._settings)
        except StreamerError as error:
            if not (is_transient(error) or isinstance(error, ChangedError)):
                raise
            _log.warning("the versions at %s cannot be looked up now: %s", redact(self._folder), error)
            return None
        if read is None:
            return None
        self._last = read[0].versions[-1].name, read[1]
        return self._last[0] if before is None or before[0] != self._last[0] else None
