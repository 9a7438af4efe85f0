"""Entry points of installed distributions; distributions in the working directory or a checkpoint's folder are ignored.

Guarantees: a distribution on an accidental entry of ``sys.path`` (`search_path.py`) is not used as a plug-in and hides
no installed one; the log warns about it. The user allows it by its name in ``STREAMER_PLUGINS``: no download can set an
environment variable. If another library (torch, fsspec) would run such code when we import or call it,
`refuse_accidental` raises first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from streamer.core.discovery.search_path import split_path
from streamer.core.errors import PluginError
from streamer.core.folders.paths import disk_name, text_of
from streamer.core.log import OwnLogger
from streamer.core.quoting import quoted

if TYPE_CHECKING:  # the import takes 15 ms, a quarter of the time that `import streamer` may take
    from importlib.metadata import Distribution, EntryPoint

ALLOWED = "STREAMER_PLUGINS"
DISABLED = "STREAMER_DISABLED_PLUGINS"
UNNAMED = "a distribution without a name"

_SEPARATOR = re.compile(r"[-_.]+")
_logger = OwnLogger()


def entry_points_of(group: str, folders: Iterable[str] = ()) -> list[EntryPoint]:
    """Return the entry points of a group; if two distributions have one name, the first on the path counts."""
    chosen, accidental = split_path(_on_disk(folders))
    installed = list(_with_entry_points(chosen, group))
    if len(installed) == 1 and not accidental:  # its name is not needed, and takes half a millisecond to read
        return installed[0].points_of(group)
    points_by_name: dict[str, list[EntryPoint]] = {}
    for distribution in installed:
        points_by_name.setdefault(normalized(distribution.name), distribution.points_of(group))
    for distribution in _with_entry_points(accidental, group):
        if is_allowed(distribution.name):
            points_by_name.setdefault(normalized(distribution.name), distribution.points_of(group))
        else:
            _logger.warning(
                "The plug-in %s is not used: it lies in the working directory or in the checkpoint's folder (%s). "
                "If it is yours, name it in %s",
                quoted(distribution.name),
                quoted(distribution.folder),
                ALLOWED,
            )
    return [point for points in points_by_name.values() for point in points]


def refuse_accidental(group: str, library: str, folders: Iterable[str] = ()) -> None:
    """Raise if another library would take a distribution in the working directory for an installed one."""
    _, accidental = split_path(_on_disk(folders))
    for distribution in _with_entry_points(accidental, group):
        if not is_allowed(distribution.name):
            raise PluginError(
                f"{library} would run code of {quoted(distribution.name)}, which nobody installed: it lies in the "
                "working directory or in the checkpoint's folder",
                hint=f"Start Python in another folder or with -P, or, if it is yours, name it in {ALLOWED}",
            )


def _on_disk(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of checkpoints in the encoding of ``sys.path``, whatever the locale is."""
    return tuple(disk_name(text_of(folder)) for folder in folders)


def is_allowed(name: str) -> bool:
    """Say whether the user named this distribution in ``STREAMER_PLUGINS``."""
    return normalized(name) in {normalized(each) for each in os.environ.get(ALLOWED, "").split(",")} - {""}


def name_of(distribution: Distribution) -> str:
    """Return the name of a distribution; a distribution that was written by hand may lack its metadata file."""
    try:
        name = distribution.name
    except Exception:  # the class depends on the version of Python
        name = None
    return str(name) if name else UNNAMED


def normalized(name: str) -> str:
    """Normalize the name of a distribution by PEP 503, so that ``My_Plugin`` and ``my-plugin`` are the same."""
    return _SEPARATOR.sub("-", name.strip()).lower()


class _Distribution:
    """A distribution with entry points; its name and its entry points are only read when they are needed."""

    def __init__(self, distribution: Distribution, text: str) -> None:
        self._distribution, self._text = distribution, text

    @cached_property
    def name(self) -> str:
        """The name in its metadata."""
        return name_of(self._distribution)

    @property
    def folder(self) -> str:
        """The folder that holds the distribution."""
        return str(self._distribution.locate_file(""))

    def points_of(self, group: str) -> list[EntryPoint]:
        """Return its entry points of a group."""
        # Most distributions only have other groups, and parsing takes longer than searching the text.
        return [point for point in self._points if point.group == group] if group in self._text else []

    @cached_property
    def _points(self) -> list[EntryPoint]:
        return list(self._distribution.entry_points)


def _with_entry_points(path: list[str], group: str) -> Iterator[_Distribution]:
    """Yield the distributions on a path that have entry points of the group."""
    for entry in path:
        for distribution in _read(entry, _changed_at(entry), tuple(sys.meta_path)):
            if distribution.points_of(group):
                yield distribution


@lru_cache(maxsize=64)
def _read(entry: str, *_key: object) -> list[_Distribution]:
    """Read the files of entry points in a folder, cached until the folder changes: 0.02 ms for each distribution.

    An installer makes and removes folders, which changes the time of the outer folder; Python relies on it, too.
    """
    from importlib.metadata import distributions  # noqa: PLC0415 (takes 15 ms)

    texts = ((distribution, distribution.read_text("entry_points.txt")) for distribution in distributions(path=[entry]))
    return [_Distribution(distribution, text) for distribution, text in texts if text]


def _changed_at(entry: str) -> int | None:
    try:
        return os.stat(entry).st_mtime_ns
    except (OSError, ValueError):  # the entry does not exist, or is no path
        return None
