"""Replaces the name of a reader or writer in a module, for files of certain folders; other files are not affected.

Thread-safe. The name is replaced while at least one folder is routed. Afterwards the name has its earlier value, or the
value that `streamer.patch` or `streamer.unpatch` has set meanwhile. If other code has changed the name, it stays as it
is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

__all__ = ["Reader", "RoutedName", "routed"]

Reader = Callable[..., Any]  # takes a path in the folder, and the other arguments of the replaced name


class RoutedName:
    """A name of a module that reads one file.

    Args:
        module: The name of the module, which is imported with the first folder. It may be absent in a version.
        name: The name of the reader in the module, which may be absent.
        origin: Module and name from which the reader was imported, if `streamer.patch` replaces it.
        position: The position of the path among the arguments: writers take the tensors first.

    Attributes:
        module: The name of the module.
    """

    def __init__(
        self, module: str, name: str = "safe_open", origin: tuple[str, str] | None = None, *, position: int = 0
    ) -> None:
        self.module, self._name, self._origin = module, name, origin
        self._position = position
        self._lock = threading.Lock()
        self._readers: dict[str, Reader] = {}
        self._theirs: Any = None
        self._route = self._read  # kept, because each access of a method creates another object

    def add(self, folder: str, reader: Reader) -> None:
        """Route the files of a folder to a reader from now on.

        Args:
            folder: The absolute path of the folder.
            reader: Reads a path below it, or returns None for a path that must be read as before.
        """
        names = self._names()
        with self._lock:
            if not self._readers and self._name in names:
                held = names[self._name]
                # A reader of safetensors is looked up again at each call: `streamer.patch` may replace or restore it.
                self._theirs = None if self._origin is not None and held is self._original() else held
                names[self._name] = self._route
            self._readers[folder] = reader

    def discard(self, folder: str) -> None:
        """Undo `add`; does nothing for a folder that is not routed."""
        with self._lock:
            if self._readers.pop(folder, None) is None:
                return
            names = self._names()
            if not self._readers and names.get(self._name) is self._route:
                names[self._name] = self._theirs or self._original()

    def _names(self) -> dict[str, Any]:
        try:
            return vars(import_module(self.module))
        except ModuleNotFoundError as error:
            if error.name != self.module:
                raise
            return {}

    def _original(self) -> Any:
        assert self._origin is not None
        return vars(import_module(self._origin[0]))[self._origin[1]]

    def _read(self, *given: Any, **named: Any) -> Any:
        at, more = self._position, dict(named)
        filename = given[at] if at < len(given) else more.pop("filename", None)
        if isinstance(filename, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(filename))
            with self._lock:
                readers = [each for folder, each in self._readers.items() if path.startswith(folder + os.sep)]
            for reader in readers:
                found = reader(path, *given[:at], *given[at + 1 :], **more)
                if found is not None:
                    return found
        return (self._theirs or self._original())(*given, **named)


@contextmanager
def routed(folder: str, readers: Mapping[RoutedName, Reader]) -> Iterator[None]:
    """Route several names inside a ``with`` block.

    Args:
        folder: As for `RoutedName.add`.
        readers: Name to the reader that replaces it.
    """
    with ExitStack() as stack:
        for name, reader in readers.items():
            name.add(folder, reader)
            stack.callback(name.discard, folder)
        yield
