"""Copies objects to files on a disk, for ``streamer::``.

Guarantees: a downloaded file gets its name after all its bytes are written; a failed download leaves nothing. A pipe or
a device is written to directly. If the path is a link, the file that it leads to is replaced; it is written to directly
if only the kernel can follow the link (``/proc/PID/fd/3``). Ranges of many objects are read in one session of the
engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamer.core.engine.byte_reads import read_bytes
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    OptionError,
    RangeResponseError,
    StreamerError,
    TruncatedError,
)
from streamer.core.folders.drafts import output_of
from streamer.core.folders.paths import followed
from streamer.core.store.parallel import in_parallel
from streamer.integrations.fsspec.remote_file import PinnedObject

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

# Errors of one object. Any other error would probably also occur for the next object, after another wait.
_OF_ONE_OBJECT = (AccessDeniedError, ChangedError, ObjectNotFoundError, RangeResponseError, TruncatedError)


def bounds(size_bytes: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the range of a slice of an object of this size.

    Example:
        >>> [bounds(10, *each) for each in ((None, None), (-3, None), (2, -1), (4, 99), (7, 5))]
        [(0, 10), (7, 10), (2, 9), (4, 10), (7, 7)]
    """
    begin, limit, _ = slice(start, end).indices(size_bytes)
    return begin, max(begin, limit)


def opened_objects(
    paths: Iterable[str], opened: Callable[[str], PinnedObject]
) -> dict[str, PinnedObject | StreamerError]:
    """Look up objects in parallel; return the object, or the error, for each path."""

    def one(path: str) -> PinnedObject | StreamerError:
        try:
            return opened(path)
        except StreamerError as error:
            return error

    distinct = list(dict.fromkeys(paths))
    return dict(zip(distinct, in_parallel(one, distinct, role="open"), strict=True))


def read_ranges(
    objects: Mapping[str, PinnedObject | StreamerError],
    wanted: Sequence[tuple[str, int | None, int | None]],
    max_gap: int | None,
) -> list[bytes | StreamerError]:
    """Read ranges of objects, all in one session of the engine; return the bytes, or the error of the object.

    An error that does not concern a single object is returned for all ranges that are not read yet.
    """
    found: dict[str, PinnedObject | StreamerError] = dict(objects)
    while True:
        readable = {path: each for path, each in found.items() if isinstance(each, PinnedObject)}
        try:
            contents = _read(readable, [each for each in wanted if each[0] in readable], max_gap)
        except StreamerError as error:
            failed = [path for path, each in readable.items() if each.uri == error.uri]
            is_of_one = isinstance(error, _OF_ONE_OBJECT) and bool(failed)
            found.update(dict.fromkeys(failed if is_of_one else readable, error))
            continue
        rest = iter(contents)
        results: list[bytes | StreamerError] = []
        for path, _, _ in wanted:
            each = found[path]
            results.append(next(rest) if isinstance(each, PinnedObject) else each)
        return results


def _read(
    objects: Mapping[str, PinnedObject], wanted: Sequence[tuple[str, int | None, int | None]], max_gap: int | None
) -> list[bytes]:
    if not wanted:
        return []
    number_of = {path: number for number, path in enumerate(objects)}
    ranges = [(number_of[path], *bounds(objects[path].size_bytes, start, end)) for path, start, end in wanted]
    settings = next(iter(objects.values())).fresh_settings()
    if max_gap is not None:
        settings = replace(settings, coalesce_gap_bytes=max_gap)
    return read_bytes([each.source_object() for each in objects.values()], ranges, settings)[0]


AT_A_TIME = 32  # small objects in one session: 128 MiB at most
SMALL_BYTES = 4 << 20  # larger objects get a session of their own


def download(pinned: PinnedObject, path: str, callback: Callback) -> None:
    """Write an object to a file; create its folder if it is missing."""
    callback.set_size(pinned.size_bytes)
    with _destination(path) as name, open(name, "wb", buffering=0) as file:
        is_seekable = file.seekable()
        with closing(pinned.stream(0, in_order=not is_seekable)) as stream:
            for offset, piece in stream.pieces():
                if is_seekable:
                    file.seek(offset)
                _write(file, piece)
                callback.relative_update(piece.nbytes)


def is_small(pinned: PinnedObject) -> bool:
    """Whether an object is read together with others."""
    return pinned.size_bytes <= SMALL_BYTES


def download_small(objects: Mapping[str, PinnedObject]) -> Iterator[str]:
    """Write small objects to files, several in each session of the engine; yield each path when it is written."""
    for first in range(0, len(objects), AT_A_TIME):
        some = dict(list(objects.items())[first : first + AT_A_TIME])
        for path, content in zip(some, read_ranges(some, [(path, None, None) for path in some], None), strict=True):
            if not isinstance(content, bytes):
                raise content
            with _destination(path) as name, open(name, "wb", buffering=0) as file:
                _write(file, memoryview(content))
            yield path


def write_to(pinned: PinnedObject, file: Any, callback: Callback) -> None:
    """Write an object to an open file, in order; raises as `download`."""
    callback.set_size(pinned.size_bytes)
    with closing(pinned.stream(0)) as stream:
        for _, piece in stream.pieces():
            file.write(bytes(piece))  # another class of file may keep the object it gets
            callback.relative_update(piece.nbytes)


@contextmanager
def _destination(path: str) -> Iterator[str]:
    target = followed(path)
    if folder := os.path.dirname(target):
        os.makedirs(folder, exist_ok=True)
    with output_of(target) as name:
        yield name


def _write(file: Any, piece: memoryview) -> None:
    while piece.nbytes:  # a system call writes at most 2 GiB, and may write less
        piece = piece[file.write(piece) :]


def check_names(method: str, named: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    """Refuse unknown arguments of a call."""
    if unknown := sorted(named.keys() - known):
        raise OptionError(
            f"{method} of streamer:: has no argument {unknown[0][:80]!r}", hint="Leave it out, or use the attribute fs"
        )
