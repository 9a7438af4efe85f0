"""Puts this package's readers where loaded libraries hold safetensors', and takes them away again.

A library that says ``from safetensors import safe_open`` has a name of its own for it: the names of all loaded modules
are looked through, and each that holds a function of the table is given ours. A library that is imported later gets
ours from safetensors itself. Undoing gives each name what it held before; a name that somebody else has changed
meanwhile stays as it is. Thread-safe.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from streamer.compat.versions import may_be_patched

__all__ = ["TABLE", "patch", "patched", "unpatch"]

# Module and name of theirs; ours is under the same names in streamer.compat.
TABLE = (
    ("safetensors", "safe_open"),
    ("safetensors.torch", "load_file"),
    ("safetensors.torch", "load_model"),
    ("safetensors.numpy", "load_file"),
)
TRIED = ("0.8", "0.9")  # versions of safetensors: the first one tried, and the first one not tried


class _Patches:
    """What is in place now, for all callers together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._theirs_by_ours: dict[int, tuple[Any, Any]] = {}  # id of ours: ours and theirs

    def add_user(self) -> list[str]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._put()
            return sorted({f"{module.__name__}.{name}" for module, name, _ in self._held()})

    def remove_user(self) -> None:
        with self._lock:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                self._take_away()

    def _put(self) -> None:
        for module_name, name in TABLE:
            ours = _own(getattr(import_module(f"streamer.compat.{module_name}"), name))
            theirs = vars(import_module(module_name))[name]
            self._theirs_by_ours[id(ours)] = ours, theirs
            for module in _modules():
                for key, value in list(vars(module).items()):
                    if value is theirs:
                        setattr(module, key, ours)

    def _take_away(self) -> None:
        for module, name, theirs in list(self._held()):
            setattr(module, name, theirs)
        self._theirs_by_ours.clear()

    def _held(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Give each name that holds one of ours, and what it shall hold afterwards."""
        for module in _modules():
            for name, value in list(vars(module).items()):
                held = self._theirs_by_ours.get(id(value))
                if held is not None:
                    yield module, name, held[1]


_PATCHES = _Patches()


def patch() -> list[str]:
    """Let libraries that read with safetensors read with this package: any URL, and to GPUs through pinned memory.

    Local files for the CPU are still read by safetensors itself, which is as fast. Call `unpatch` as often as this.
    ``STREAMER_DISABLE_PATCHES=1`` makes it do nothing.

    Returns:
        The names that are ours now, for instance ``transformers.modeling_utils.safe_open``.

    Example:
        >>> streamer.patch()                                           # doctest: +SKIP
        ['safetensors.numpy.load_file', 'safetensors.safe_open', 'safetensors.torch.load_file', ...]
    """
    return _PATCHES.add_user() if _is_possible() else []


def unpatch() -> None:
    """Undo one `patch`; the last one gives every library its own readers back. Without one it does nothing."""
    _PATCHES.remove_user()


@contextmanager
def patched() -> Iterator[list[str]]:
    """Patch inside of a block.

    Example:
        >>> with streamer.patched():                                   # doctest: +SKIP
        ...     pipeline = DiffusionPipeline.from_pretrained(folder)
    """
    if not _is_possible():
        yield []
        return
    names = _PATCHES.add_user()
    try:
        yield names
    finally:
        _PATCHES.remove_user()


def _is_possible() -> bool:
    return may_be_patched("safetensors", TRIED)


def _own(ours: Any) -> Any:
    """Make a twin that only a patch puts anywhere: who imported ours himself keeps it when the patch is undone."""
    if isinstance(ours, type):
        return type(ours.__name__, (ours,), {"__doc__": ours.__doc__, "__module__": ours.__module__})

    @wraps(ours)
    def twin(*arguments: Any, **named: Any) -> Any:
        return ours(*arguments, **named)

    return twin


def _modules() -> list[ModuleType]:
    """Give the loaded modules of others; one that another thread imports meanwhile may be left out."""
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] != "streamer"
    ]
