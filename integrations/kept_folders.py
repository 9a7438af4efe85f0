"""Keeps a private folder as long as the objects that were loaded from it: saving them may copy its files."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from streamer.compat.hooks import Hook, imported, is_equal
from streamer.core.folders.private_folders import private_folder
from streamer.integrations.folder_weights import FolderWeights
from streamer.integrations.library_calls import Location
from streamer.integrations.routed_call import RoutedName, routed
from streamer.integrations.small_checkpoint import small_checkpoint

_READER = RoutedName("accelerate.utils.offload", origin=("safetensors", "safe_open"))


class _Folder(Protocol):
    def close(self) -> None: ...


class _Part(Protocol):
    path: str

    @property
    def is_written(self) -> bool: ...

    def opened(self, path: str) -> Any: ...

    def write_weights(self) -> None: ...

    def remove_weights(self) -> None: ...


def keep(
    folder: _Folder, parts: Iterable[_Part], objects: Sequence[Any], late_readers: Iterable[RoutedName] = ()
) -> None:
    """Close a folder when the last of some objects is garbage-collected.

    Until then, weights that a ``device_map`` left on ``"disk"`` are read from the URL whenever they are used.
    """
    routes = _routes_after_the_load(list(parts), objects, list(late_readers))
    alive = [None]  # one extra until all objects are watched

    def count_down() -> None:
        alive.pop()
        if not alive:
            for reader, part in routes:
                reader.discard(part.path)
            folder.close()

    for each in objects:
        try:
            weakref.finalize(each, count_down)
        except TypeError:
            continue
        alive.append(None)
    count_down()


def _routes_after_the_load(
    parts: Sequence[_Part], objects: Sequence[Any], late_readers: Sequence[RoutedName]
) -> list[tuple[RoutedName, _Part]]:
    """Route reads after the load to the URL; return which reader reads which folder."""
    is_on_disk = any(map(_is_on_disk, objects))
    if not is_on_disk and not late_readers:
        for part in parts:
            part.remove_weights()
        return []
    empty = [part for part in parts if not part.is_written]
    if empty and is_on_disk and not OFFLOADED.fits():
        for part in empty:
            part.write_weights()
        return []
    routes = [(reader, part) for reader in [*late_readers, *([_READER] if is_on_disk else [])] for part in empty]
    for reader, part in routes:
        reader.add(part.path, part.opened)
    return routes


def _reads_what_is_offloaded() -> bool:
    """Whether accelerate reads two tensors correctly as weights that were left on a disk."""
    with small_checkpoint() as (location, expected), private_folder() as path:
        weights = FolderWeights(path, location)
        index = {
            name: {"safetensors_file": os.path.join(path, shard), "weight_name": name}
            for name, shard in weights.shard_of_tensor.items()
        }
        with routed(path, {_READER: weights.opened}):
            state = dict(imported("accelerate.utils").OffloadedWeightsLoader(index=index))
    return is_equal(state, expected)


OFFLOADED = Hook(
    "accelerate.utils.offload",
    "safe_open",
    otherwise="weights that a device_map leaves on the disk are written to a private folder there",
    dry_run=_reads_what_is_offloaded,
)


def _is_on_disk(loaded: Any) -> bool:
    devices = getattr(loaded, "hf_device_map", None)
    return isinstance(devices, Mapping) and "disk" in devices.values()


def name_after(objects: Iterable[Any], path: str, location: Location) -> None:
    """Replace the name of the private folder in loaded objects by the URL, without its secrets."""
    for each in objects:
        config = getattr(each, "config", None)
        if hasattr(each, "register_to_config"):  # an object of diffusers, whose configuration names its origin
            labels = {name: _label(value, path, location) for name, value in dict(config or {}).items()}
            each.register_to_config(**{name: label for name, label in labels.items() if label is not None})
            continue
        for named in filter(None, (each, config)):
            label = _label(getattr(named, "name_or_path", None), path, location)
            if label is not None:
                named.name_or_path = label


def _label(name: Any, path: str, location: Location) -> str | None:
    if not isinstance(name, (str, os.PathLike)):
        return None
    inside = os.path.relpath(name, path) if os.path.isabs(name) else ".."
    if inside.split(os.sep)[0] == "..":
        return None
    return location.label if inside == "." else location.inside(inside).label
