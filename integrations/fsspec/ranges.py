"""Reads ranges of many objects in one session of the engine, for ``cat_ranges`` of fsspec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from streamer.core.engine.byte_reads import read_bytes
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    RangeResponseError,
    StreamerError,
    TruncatedError,
)
from streamer.core.store.parallel import in_parallel
from streamer.integrations.fsspec.pinned_object import PinnedObject

__all__ = ["bounds", "opened_objects", "read_ranges"]

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
    """Read ranges of objects, all in one session of the engine.

    Returns:
        The bytes of each range, or the error of its object. An error that does not concern a single object is returned
        for all ranges that are not read yet.
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
