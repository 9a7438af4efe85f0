"""A private folder exists as long as what was loaded from it, which may copy its files when it is saved."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from streamer.integrations.location import Location

__all__ = ["keep", "name_after"]


def keep(close: Callable[[], None], objects: Iterable[Any]) -> None:
    """Close a folder when the last of some objects is gone.

    Args:
        close: Removes the folder.
        objects: That were loaded from it; those of a kind that cannot be watched do not keep it.
    """
    alive = [None]  # until all are watched

    def one_is_gone() -> None:
        alive.pop()
        if not alive:
            close()

    for each in objects:
        try:
            weakref.finalize(each, one_is_gone)
        except TypeError:
            continue
        alive.append(None)
    one_is_gone()


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
