"""Replaces a reader's name in one module while files of certain folders are read by us; other files go on as before.

Thread-safe. The name is ours while at least one folder is routed; then it is again what it was, or what
`streamer.patch` has made of it meanwhile. One that somebody else has changed stays as it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

__all__ = ["Reader", "RoutedName", "routed"]

Reader = Callable[..., Any]  # of a path in the folder, and what else the name takes


class RoutedName:
    """A name of a module that reads one file.

    Args:
        module: Its name; it is imported when a folder is routed first. A version of its library may be without it.
        name: What it calls the reader, if it does.
        origin: Module and name that the reader was imported from, if it is one that `streamer.patch` replaces.

    Attributes:
        module: As given.
    """

    def __init__(self, module: str, name: str = "safe_open", origin: tuple[str, str] | None = None) -> None:
        self.module, self._name, self._origin = module, name, origin
        self._lock = threading.Lock()
        self._readers: dict[str, Reader] = {}
        self._theirs: Any = None
        self._route = self._read  # one object: a method is another one each time

    def add(self, folder: str, reader: Reader) -> None:
        """Read the files of a folder so from now on.

        Args:
            folder: Its absolute path.
            reader: Reads a path below it, or gives None for one that is to be read as before.
        """
        names = self._names()
        with self._lock:
            if not self._readers and self._name in names:
                held = names[self._name]
                # What is safetensors' own may be patched until then, or no longer.
                self._theirs = None if self._origin is not None and held is self._original() else held
                names[self._name] = self._route
            self._readers[folder] = reader

    def discard(self, folder: str) -> None:
        """End what `add` began; a folder that is not routed is no error."""
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

    def _read(self, filename: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(filename, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(filename))
            with self._lock:
                readers = [each for folder, each in self._readers.items() if path.startswith(folder + os.sep)]
            for reader in readers:
                found = reader(path, *arguments, **named)
                if found is not None:
                    return found
        return (self._theirs or self._original())(filename, *arguments, **named)


@contextmanager
def routed(folder: str, readers: Mapping[RoutedName, Reader]) -> Iterator[None]:
    """Route several names inside of a block.

    Args:
        folder: As for `RoutedName.add`.
        readers: What reads for each name.
    """
    with ExitStack() as stack:
        for name, reader in readers.items():
            name.add(folder, reader)
            stack.callback(name.discard, folder)
        yield
