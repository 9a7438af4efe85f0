"""A private folder exists as long as what was loaded from it, which may copy its files when it is saved."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from streamer.integrations.location import Location
from streamer.integrations.routed_names import RoutedName

__all__ = ["keep", "name_after"]

_OFFLOADED = RoutedName("accelerate.utils.offload", origin=("safetensors", "safe_open"))


class _Folder(Protocol):
    def close(self) -> None: ...


class _Part(Protocol):
    path: str

    def opened(self, path: str) -> Any: ...


def keep(folder: _Folder, parts: Iterable[_Part], objects: Sequence[Any]) -> None:
    """Close a folder when the last of some objects is gone.

    Until then, what a ``device_map`` of theirs left on ``"disk"`` is read from the URL whenever it is used.

    Args:
        folder: What to close.
        parts: The folders of models in it, or itself.
        objects: That were loaded from it; those of a kind that cannot be watched do not keep it.
    """
    offloaded = list(parts) if any(map(_is_on_disk, objects)) else []
    for part in offloaded:
        _OFFLOADED.add(part.path, part.opened)
    alive = [None]  # until all are watched

    def one_is_gone() -> None:
        alive.pop()
        if not alive:
            for part in offloaded:
                _OFFLOADED.discard(part.path)
            folder.close()

    for each in objects:
        try:
            weakref.finalize(each, one_is_gone)
        except TypeError:
            continue
        alive.append(None)
    one_is_gone()


def _is_on_disk(loaded: Any) -> bool:
    devices = getattr(loaded, "hf_device_map", None)
    return isinstance(devices, Mapping) and "disk" in devices.values()


def name_after(objects: Iterable[Any], path: str, location: Location) -> None:
    """Let objects that name the private folder they come from name the URL, without its secrets.

    Args:
        objects: That were loaded.
        path: Of the private folder.
        location: What it stands for.
    """
    for each in objects:
        config = getattr(each, "config", None)
        if hasattr(each, "register_to_config"):  # of diffusers: an entry of its configuration says where it comes from
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
