"""Lists the installed backends and formats, and whether they work, for ``python -m streamer plugins``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamer.core.errors import PluginError, StreamerError
from streamer.core.store.sources import PythonSource
from streamer.plugins.formats import enabled_formats, is_our_format, loaded_format
from streamer.plugins.loading import distribution_of, is_builtin, source_kind, version_of
from streamer.plugins.registry import choose, enabled

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Backend:
    """An installed backend, not imported.

    Attributes:
        scheme: The URL scheme that it serves.
        distribution: Name of the distribution that contains it.
        version: Version of that distribution.
        builtin: Whether it is part of this distribution.
    """

    scheme: str
    distribution: str
    version: str
    builtin: bool


@dataclass(frozen=True)
class Examined:
    """An installed backend that was imported to see whether it works.

    Attributes:
        backend: The backend.
        reads: ``"native"``, ``"Python"``, or None if it does not say or does not work.
        is_used: Whether it serves the URLs of its scheme; if a scheme has two backends, only one does.
        error: Why it does not work, and what to do; None if it works.
    """

    backend: Backend
    reads: str | None
    is_used: bool
    error: str | None


@dataclass(frozen=True)
class ExaminedFormat:
    """An installed format of checkpoints that was imported to see whether it works.

    Attributes:
        format: What users call it; the name of its entry point if it does not work.
        suffixes: Ends of the names of its files; none if it does not work.
        distribution: Name of the distribution that contains it.
        version: Version of that distribution.
        builtin: Whether it is part of this distribution.
        error: Why it does not work, and what to do; None if it works.
    """

    format: str
    suffixes: tuple[str, ...]
    distribution: str
    version: str
    builtin: bool
    error: str | None


def installed(*, entry_points: Iterable[EntryPoint] | None = None) -> list[Backend]:
    """List the backends that are installed and not disabled, by scheme, without importing them."""
    return sorted((_described(point) for point in enabled(entry_points)), key=_order)


def examine(*, entry_points: Iterable[EntryPoint] | None = None) -> list[Examined]:
    """Import every backend that is installed and not disabled, and report whether each works.

    Importing all their libraries takes seconds. No store is opened, and no request is sent.
    """
    points = enabled(entry_points)
    return sorted((_examined(point, points) for point in points), key=lambda examined: _order(examined.backend))


def examine_formats(*, entry_points: Iterable[EntryPoint] | None = None) -> list[ExaminedFormat]:
    """Import every format that is installed and not disabled, in the order in which they are asked."""
    return [_examined_format(point) for point in enabled_formats(entry_points)]


def _examined_format(point: EntryPoint) -> ExaminedFormat:
    owner, builtin = (distribution_of(point), version_of(point)), is_our_format(point)
    try:
        found = loaded_format(point)
    except PluginError as error:
        return ExaminedFormat(point.name, (), *owner, builtin, str(error))
    return ExaminedFormat(found.name, found.suffixes, *owner, builtin, error=None)


def _examined(point: EntryPoint, points: list[EntryPoint]) -> Examined:
    backend = _described(point)
    try:
        is_used = choose(backend.scheme, points) is point
    except PluginError as error:
        return Examined(backend, None, is_used=False, error=str(error))
    try:
        kind = source_kind(point, backend.scheme)
    except StreamerError as error:
        return Examined(backend, None, is_used, str(error))
    reads = None if kind is None else "Python" if issubclass(kind, PythonSource) else "native"
    return Examined(backend, reads, is_used, error=None)


def _described(point: EntryPoint) -> Backend:
    return Backend(point.name.lower(), distribution_of(point), version_of(point), builtin=is_builtin(point))


def _order(backend: Backend) -> tuple[str, bool, str]:
    return backend.scheme, backend.builtin, backend.distribution
