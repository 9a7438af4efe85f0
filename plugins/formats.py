"""Finds the installed formats of checkpoints: entry points in the group ``streamer.formats``.

Built-in formats come first: a format of another distribution gets only files that no built-in format takes. Formats are
imported when a checkpoint in another format than safetensors is opened. A format that cannot be imported is named in
the log, and the others are still used. Each exception of a format from another distribution becomes an error that names
the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from streamer.core.discovery.entry_points import DISABLED, normalized
from streamer.core.errors import PluginError, StreamerError
from streamer.core.log import OwnLogger
from streamer.core.other_formats.interface import CheckpointFile, CheckpointIndex, Format, FormatHooks, TensorPlace
from streamer.core.secrets.environment import variable
from streamer.core.shards.format_choice import OUR_MODULES
from streamer.core.store.sources import PROJECT_NAME
from streamer.plugins.answers import kind_of
from streamer.plugins.loading import distribution_of, plugin_of, points_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FORMATS = "streamer.formats"
OUR_FORMATS = {
    "torch": f"{OUR_MODULES}torch_zip",
    **{name: f"{OUR_MODULES}{name}" for name in ("gguf", "npz", "dcp", "tensorizer")},
}

_logger = OwnLogger()
_Answer = TypeVar("_Answer")


def formats_for(folders: Iterable[str] = ()) -> list[Format]:
    """Load the formats for checkpoints in some folders; distributions that lie in these folders are not used."""
    return installed_formats(points_of(FORMATS, OUR_FORMATS, folders))


def installed_formats(entry_points: Iterable[EntryPoint]) -> list[Format]:
    """Load formats, ours first, then the others by name; leave out those that do not work or are disabled."""
    found: list[Format] = []
    for point in enabled_formats(entry_points):
        try:
            found.append(loaded_format(point))
        except PluginError as error:
            _logger.warning("%s", error)
    return found


def enabled_formats(entry_points: Iterable[EntryPoint] | None = None) -> list[EntryPoint]:
    """Return the formats that are not disabled, ours first, then the others by name; by default all installed ones."""
    disabled = {normalized(name) for name in (variable(DISABLED) or "").split(",")} - {""}
    points = points_of(FORMATS, OUR_FORMATS) if entry_points is None else entry_points
    return [
        point
        for point in sorted(points, key=lambda point: (not is_our_format(point), point.name))
        if is_our_format(point) or not disabled or normalized(distribution_of(point)) not in disabled
    ]


def is_our_format(point: EntryPoint) -> bool:
    """Say whether a format is part of this package."""
    return point.value.startswith(OUR_MODULES)


def loaded_format(point: EntryPoint) -> Format:
    """Import a format; one of another distribution is guarded."""
    return _loaded(point) if is_our_format(point) else _Guarded(_loaded(point), point)


def _loaded(point: EntryPoint) -> Format:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(FormatHooks)
    try:
        manager.register(point.load())
        manager.check_pending()
        made: Any = manager.hook.streamer_format()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a script ends with SystemExit when it is imported
        raise plugin_of(point).error(f"cannot be used ({kind_of(error)}: {error})") from error
    lacking = [each for each in ("name", "suffixes", "files_of", "is_format", "read_index") if not hasattr(made, each)]
    if lacking:
        raise plugin_of(point).error(f"gave {kind_of(made)} without {lacking[0]}, so it is not a format")
    return made  # type: ignore[no-any-return]


class _Guarded:
    """A format of another distribution. Its faults become errors that name the format."""

    def __init__(self, inner: Format, point: EntryPoint) -> None:
        self._inner, self._plugin = inner, plugin_of(point)
        self.name, self.suffixes = str(inner.name), self._suffixes(inner)

    def files_of(self, names: Sequence[str]) -> Sequence[str]:
        chosen = self._call("files_of", partial(self._inner.files_of, names))
        if not all(name in names for name in chosen):
            raise self._plugin.error("chose a file that the folder does not hold")
        return chosen

    def is_format(self, head: bytes) -> bool:
        return bool(self._call("is_format", partial(self._inner.is_format, head)))

    def read_index(self, files: Sequence[CheckpointFile]) -> CheckpointIndex:
        index = self._call("read_index", partial(self._inner.read_index, files))
        if not isinstance(index, CheckpointIndex):
            raise self._plugin.error(f"returned {kind_of(index)} from read_index, not a CheckpointIndex")
        for each in index.tensors:
            if (
                not isinstance(each, TensorPlace)
                or not isinstance(each.dtype, str)
                or not isinstance(each.shape, tuple)
            ):
                raise self._plugin.error(f"gave {kind_of(each)} in place of a TensorPlace with a dtype and a shape")
        return index

    def _suffixes(self, inner: Format) -> tuple[str, ...]:
        suffixes = inner.suffixes
        if not isinstance(suffixes, tuple) or not all(isinstance(each, str) and each for each in suffixes):
            raise self._plugin.error("has suffixes that are no tuple of texts")
        return suffixes

    def _call(self, method: str, function: Callable[[], _Answer]) -> _Answer:
        try:
            return function()
        except StreamerError:
            raise
        except Exception as error:
            raise self._plugin.error(f"raised {kind_of(error)} in {method}: {error}", method=method) from error
