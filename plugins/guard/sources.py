"""Checks the sources of a plug-in, and wraps the functions in them.

Guarantees: `read_into`, `confirm` and `refresh` only raise errors of this package, which name the plug-in. The result
of `refresh` is checked like the first source.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from streamer.core.store.sources import FileSource, HttpSource, NfsSource, PythonSource, Source
from streamer.plugins.guard.answers import number_in, text_in
from streamer.plugins.guard.calls import Calls
from streamer.plugins.guard.http_values import checked_http, line_in, path_in
from streamer.plugins.guard.plugin import BrokenContractError, kind_of

__all__ = ["guarded_source"]

MOST_THREADS = 256  # the limit of `Options`
LONGEST_TIMEOUT_S = 1e7  # four months


def guarded_source(source: Any, calls: Calls, uri: str, store: object) -> Source:
    """Return a checked source with wrapped functions.

    Args:
        source: The return value of the plug-in's store.
        calls: Calls the functions of the plug-in.
        uri: URL of the object, without secrets.
        store: The plug-in's store, which is kept alive as long as the source.

    Raises:
        BrokenContractError: it is no source, or a part of it has another type than documented.
    """
    if isinstance(source, HttpSource):
        checked = checked_http(source)
        return replace(checked, refresh=source.refresh and _refresh(source, calls, uri, store), holder=store)
    if isinstance(source, FileSource):
        return replace(_file(source), holder=store)
    if isinstance(source, NfsSource):
        return NfsSource(line_in(source.url, "url"), holder=store)
    if isinstance(source, PythonSource):
        return replace(_python(source, calls, uri), holder=store)
    raise BrokenContractError(f"returned {kind_of(source)}, not a source of streamer.plugins")


def _refresh(source: HttpSource, calls: Calls, uri: str, store: object) -> Any:
    def refreshed() -> Source:
        assert source.refresh is not None
        newer = source.refresh()
        if not isinstance(newer, HttpSource):
            raise BrokenContractError(f"returned {kind_of(newer)}, not an HttpSource")
        return guarded_source(newer, calls, uri, store)

    return partial(calls.ask, "refresh", refreshed, uri)


def _file(source: FileSource) -> FileSource:
    path = path_in(source.path, "path")
    if not path.startswith("/"):
        raise BrokenContractError("gave a path that is relative, so that it depends on the working directory")
    inside = path_in(source.inside, "inside", may_be_none=True)
    return FileSource(path, is_remote=bool(source.is_remote), inside=inside, needs_cache=bool(source.needs_cache))


def _python(source: PythonSource, calls: Calls, uri: str) -> PythonSource:
    for name in ("read_into", "confirm"):
        function = getattr(source, name)
        if not callable(function) and not (name == "confirm" and function is None):
            raise BrokenContractError(f"gave {kind_of(function)} as {name}, which is a function")
    if source.max_threads is not None:
        number_in(source.max_threads, "max_threads", 1, MOST_THREADS)
    is_number = isinstance(source.timeout_s, (int, float)) and not isinstance(source.timeout_s, bool)
    if source.timeout_s is not None and not (is_number and 0 < source.timeout_s <= LONGEST_TIMEOUT_S):
        raise BrokenContractError("gave a timeout_s that is no positive number of seconds")

    def read_into(buffer: memoryview, offset: int) -> int:
        # The buffer is passed on as an argument, because a closure would keep a reference to it.
        byte_range = (offset, offset + buffer.nbytes)
        return calls.call("read_into", _read, source, buffer, offset, uri=uri, byte_range=byte_range)

    return PythonSource(
        read_into,
        max_threads=source.max_threads,
        confirm=source.confirm and partial(calls.call, "confirm", source.confirm, uri=uri),
        remark=text_in(source.remark, "remark", may_be_none=True),
        timeout_s=source.timeout_s or calls.limits.block_deadline_s,
        owner=calls.plugin.label,
    )


def _read(source: PythonSource, buffer: memoryview, offset: int) -> int:
    wanted_bytes = buffer.nbytes
    got = source.read_into(buffer, offset)
    return number_in(got, "its result, the count of bytes that it wrote", 0, wanted_bytes)
