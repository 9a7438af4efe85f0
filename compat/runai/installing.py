"""Lets programs that use Run:ai's package use this one: by the path of a shared library, or by the name to ``import``.

``import runai_model_streamer`` finds `streamer.compat.runai` if Run:ai's own package is not installed.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from streamer import _native
from streamer.core.log import OwnLogger

__all__ = ["install", "library_path"]

NAME = "librunai_file_streamer.so"

THEIRS, OURS = "runai_model_streamer", "streamer.compat.runai"

_log = OwnLogger()


def library_path() -> str:
    """Return the path of the library; Run:ai's own Python package loads it from the variable ``STREAMER_LIBRARY``.

    Example:
        >>> library_path().endswith("/librunai_file_streamer.so")
        True
    """
    return str(Path(_native.__file__).with_name(NAME))


def install() -> bool:
    """Let ``import runai_model_streamer``, and imports of its modules, find `streamer.compat.runai` in this process.

    If Run:ai's own package is installed, this function only writes a line into the log. With ``STREAMER_LIBRARY`` (see
    `library_path`), Run:ai's package uses the engine of this one.

    Returns:
        Whether the name now belongs to this package.

    Example:
        >>> install()                                                  # doctest: +SKIP
        True
        >>> from runai_model_streamer import SafetensorsStreamer       # doctest: +SKIP
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return True
    if THEIRS in sys.modules or find_spec(THEIRS) is not None:
        _log.info("%s is installed, and left as it is; STREAMER_LIBRARY lets it read with streamer's engine", THEIRS)
        return False
    sys.meta_path.append(_Finder())
    return True


class _Finder(MetaPathFinder):
    """The last finder: Python calls it only for modules that no other finder has."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname.partition(".")[0] != THEIRS:
            return None
        ours = OURS + fullname.removeprefix(THEIRS)
        found = find_spec(ours)
        if found is None:
            return None
        return ModuleSpec(
            fullname, _CopyLoader(ours), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class _CopyLoader(Loader):
    """Copies the names of our module into another one: a module has one spec, and ours must keep its own."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        ours = importlib.import_module(self._ours)
        own = {"__name__", "__spec__", "__loader__", "__package__", "__path__"}
        vars(module).update({name: value for name, value in vars(ours).items() if name not in own})
        for name in getattr(ours, "__all__", ()):
            setattr(module, name, getattr(ours, name))
