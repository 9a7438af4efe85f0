"""Replaces safetensors' readers in loaded libraries by this package's readers, and undoes this.

A library with ``from safetensors import safe_open`` has its own name for the function. So all names in all loaded
modules are searched, and each that holds a function of the table is replaced. A library that is imported later gets
the replacement from safetensors itself. Undoing restores each name; a name that other code has changed meanwhile stays
as it is. Thread-safe.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from streamer.compat.hooks import Hook, imported, is_equal
from streamer.core.options.options import Options


def _ours(module: str, name: str) -> Any:
    return getattr(import_module(f"streamer.compat.{module}"), name)


def _can_replace(module: str, name: str) -> bool:
    """Whether our reader accepts the arguments of safetensors' reader, and reads two small tensors of safetensors."""
    ours, theirs = _ours(module, name), getattr(imported(module), name)
    known = set(signature(ours).parameters)
    unknown = [each.name for each in signature(theirs).parameters.values() if each.kind not in _ANY]
    if not known.issuperset(unknown):
        raise TypeError(f"streamer's reader has no argument {min(set(unknown) - known)!r}")
    torch = imported("torch")
    with tempfile.TemporaryDirectory(prefix="streamer-") as folder, torch.device("cpu"):
        expected, path = torch.nn.Linear(3, 2).state_dict(), os.path.join(folder, "small.safetensors")
        imported("safetensors.torch").save_file(expected, path)
        state = {each: torch.as_tensor(tensor) for each, tensor in _state(ours, name, path).items()}
        return is_equal(state, expected)


def _state(ours: Any, name: str, path: str) -> dict[str, Any]:
    """Read a file with one of our readers, through the engine."""
    if name == "load_file":
        return dict(ours(path, options=Options()))
    if name == "load_model":
        module = imported("torch").nn.Linear(3, 2)
        ours(module, path, options=Options())
        return dict(module.state_dict())
    with ours(path, "pt", options=Options()) as handle:
        return {each: handle.get_tensor(each) for each in handle}


_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NAMES = (
    ("safetensors", "safe_open"),
    ("safetensors.torch", "load_file"),
    ("safetensors.torch", "load_model"),
    ("safetensors.numpy", "load_file"),
)
# The replaced names; the replacements have the same names in streamer.compat.
TABLE = tuple(
    Hook(
        module,
        name,
        otherwise="it stays as it is, and reads no URL",
        dry_run=partial(_can_replace, module, name),
    )
    for module, name in _NAMES
)


class _Patches:
    """The patches in place, counted over all callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._theirs_by_ours: dict[int, tuple[Any, Any]] = {}  # id of our reader to our reader and theirs

    def add_user(self) -> list[str]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._replace()
            return sorted({f"{module.__name__}.{name}" for module, name, _ in self._held()})

    def remove_user(self) -> None:
        with self._lock:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                self._restore()

    def _replace(self) -> None:
        for hook in TABLE:
            if not hook.fits():
                continue
            ours, theirs = _own(_ours(hook.module, hook.name)), hook.found()
            self._theirs_by_ours[id(ours)] = ours, theirs
            for module in _modules():
                for key, value in list(vars(module).items()):
                    if value is theirs:
                        setattr(module, key, ours)

    def _restore(self) -> None:
        for module, name, theirs in list(self._held()):
            setattr(module, name, theirs)
        self._theirs_by_ours.clear()

    def _held(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Yield each name that holds one of our readers, with the reader to restore."""
        for module in _modules():
            for name, value in list(vars(module).items()):
                held = self._theirs_by_ours.get(id(value))
                if held is not None:
                    yield module, name, held[1]


_PATCHES = _Patches()


def patch() -> list[str]:
    """Make libraries that use safetensors read with this package: any URL, and to GPUs through pinned memory.

    safetensors itself still reads local files for the CPU, which is as fast. Call `unpatch` once for each call of this
    function. With ``STREAMER_DISABLE_PATCHES=1``, nothing is replaced.

    Returns:
        The replaced names, for instance ``transformers.modeling_utils.safe_open``.

    Example:
        >>> streamer.patch()                                           # doctest: +SKIP
        ['safetensors.numpy.load_file', 'safetensors.safe_open', 'safetensors.torch.load_file', ...]
    """
    return _PATCHES.add_user()


def unpatch() -> None:
    """Undo one `patch`; the last call restores the readers of all libraries. Without a `patch`, it does nothing."""
    _PATCHES.remove_user()


@contextmanager
def patched() -> Iterator[list[str]]:
    """Patch inside a ``with`` block.

    Example:
        >>> with streamer.patched():                                   # doctest: +SKIP
        ...     pipeline = DiffusionPipeline.from_pretrained(folder)
    """
    names = _PATCHES.add_user()
    try:
        yield names
    finally:
        _PATCHES.remove_user()


def _own(ours: Any) -> Any:
    """Return a copy of our reader for patches only: undoing them then leaves names alone that the user imported."""
    if isinstance(ours, type):
        return type(ours.__name__, (ours,), {"__doc__": ours.__doc__, "__module__": ours.__module__})

    @wraps(ours)
    def copied(*arguments: Any, **named: Any) -> Any:
        return ours(*arguments, **named)

    return copied


def _modules() -> list[ModuleType]:
    """Return the loaded modules of other packages; a module that another thread is importing may be missing."""
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] != "streamer"
    ]
